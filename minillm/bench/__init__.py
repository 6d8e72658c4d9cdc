"""Benchmarks: what is reached, beside what others reach and beside what the hardware allows."""
