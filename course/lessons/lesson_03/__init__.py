"""Lesson 03, prefill: what a prompt costs, and who pays.

costs.py      counted from a model's shape: FLOPs, pairs, score matrices, chunks
traffic.py    prompts of exact lengths, a long prompt among chats
attention.py  one layer's attention, textbook and fused: seconds and peak memory, measured
chunks.py     the same long prompt in chunks of several sizes      sim_70b.py   the same at 70B, simulated
reading.py    a shorter prompt, and how many answers survive it
square.py, pictures.py     the pictures
instrument.py the pictures with sliders
"""
