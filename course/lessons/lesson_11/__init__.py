"""Lesson 11, capacity: where one replica ends, what the next one costs, and what a spike, a cold start or a wrong
route does to both.

traffic.py   experiments on the real engine, and the bets' runs     fleet.py       simulated fleets, read in few numbers
knee.py      throughput, TTFT, TPOT against max-batch               bounds.py      requests per second, on paper
money.py     replicas against a config change, in dollars           spike.py       five answers to a spike
warning.py   queue wait and time-outs                               cold.py        scale to zero
routing.py   a small model for easy requests
worksheet.py traffic and SLO in, replicas and dollars out
hardware.py  a lone reader on one GPU or another
"""
