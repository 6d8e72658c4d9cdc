"""Simulated traffic, hardware and fleets, under the unchanged engine."""
