"""Lesson 06, decode and the memory wall: what a step must read and multiply, the roof above it, what it took."""
