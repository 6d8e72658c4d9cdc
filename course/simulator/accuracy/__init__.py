"""How far the simulator is from public measurements: `minillm accuracy`.

    points.py      rows of measurements, as they are written
    layout.py      what a row says about accelerators, ranks and pools; recipes.py fills in what it leaves out
    engines.py     what a serving engine does by itself: number formats, budgets, chunks
    play.py        a row, simulated
    report.py      errors, by group
    logs.py        a server's log of requests, replayed

A row that can't be simulated is refused with a reason (`Refusal`), and counted.
"""
