"""Lesson 10c: clients that leave, stall and retry. What they do to a server is lesson 10's `leaving` and `trouble`."""
