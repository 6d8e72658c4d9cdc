"""Lesson 01: its claims and its checks."""
