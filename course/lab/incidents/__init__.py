"""Incidents with a hidden cause."""
