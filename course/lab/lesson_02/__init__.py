"""Lesson 02, the queue: who waits, for how long, and whose fault it is.

visits.py     one request's way through the building: arrives, sits down, leaves    theory.py   what mathematics expects
traffic.py    experiments on the real engine                          simulated.py   the same questions at 70B
queue_pictures.py, slot_map.py, charts.py, tables.py   pictures                 instrument.py   pictures with sliders
"""
