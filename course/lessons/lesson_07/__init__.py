"""Lesson 07, the KV cache as a working set: who holds which block, what it costs, and what happens when it is full."""
