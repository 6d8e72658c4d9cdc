"""Lesson 10, detok and stream: from a token id to text on a client's screen, and what lies in between."""
