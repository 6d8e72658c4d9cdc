"""Benchmarks: what is reached, beside what others reach and beside what the hardware allows.

`cli.py` and `commands.py` are what is typed; `compare.py` runs peers (`peers.py`) on workloads; `decode.py`,
`prefill.py`, `throughput.py`, `breakdown.py` and `attention.py` measure one thing each. `costs.py` counts what
a model asks of the hardware, `roof.py` measures what the hardware can do, `report.py` is the common envelope.
"""
