"""Lesson 13: its claims and its checks."""
