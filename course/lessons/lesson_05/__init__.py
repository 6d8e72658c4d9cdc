"""Lesson 05: what a time to first token is made of, and which scheduling policy moves which part."""
