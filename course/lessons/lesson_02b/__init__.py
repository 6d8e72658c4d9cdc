"""Lesson 02b, batching and admission: how slots are filled, who goes next, and which requests are refused.

traffic.py    experiments on the real engine     simulated.py   the same questions at 70B
tenants.py    one greedy tenant, three small ones  slot_map.py, tables.py, instrument.py   pictures
findings.py   what a run showed, in words
"""
