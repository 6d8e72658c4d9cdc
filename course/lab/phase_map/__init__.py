"""The map of phases and techniques: what helps where, what does nothing, what hurts. Every cell is two pairs of runs.

techniques.py   each technique with and without, on a workload where it should help and on one where it should not
measure.py      runs the pairs and stores what came out      python -m course.lab.phase_map.measure
picture.py      what was stored, as a picture and a table
"""
