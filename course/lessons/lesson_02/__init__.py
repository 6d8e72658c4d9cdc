"""Lesson 02, the queue: how long a request waits, and why that explodes near capacity.

visits.py     one request's stamps: arrives, is scheduled, ends    theory.py   the formulas, and a replay of arrivals
traffic.py    experiments on the real engine                           simulated.py   the same questions at 70B
queue_pictures.py, curve.py, charts.py, tables.py   pictures           instrument.py   pictures with sliders
findings.py   what a run showed, in words
"""
