"""Benchmarks: how fast, beside which baselines, and how far below what the machine can do.

`cli.py` and `commands.py` are what is typed, with the options of `options.py`; `compare.py` runs engines
(`baselines/`) on workloads; `decode.py`, `prefill.py` and the like measure minillm alone. Each has a `run` that returns
results and their text; `report.py` is the envelope that all reports share.
"""
