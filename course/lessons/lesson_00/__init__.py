"""Lesson 00: its claims and its checks."""
