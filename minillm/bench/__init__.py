"""Benchmarks of this engine: how fast it is, and how far below what the machine can do.

`cli.py` is what is typed, with the options of `options.py`. Each benchmark has a `run` that returns results and their
text; `report.py` is the envelope that all reports share.
"""
