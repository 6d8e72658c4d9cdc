"""Lesson 09: what rounding does, which phases it moves, and what it costs in quality."""
