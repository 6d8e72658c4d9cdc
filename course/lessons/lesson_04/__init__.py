"""What lesson 04 is made of: prefix caching, and the order of a prompt.

chain.py        text to blocks and hashes       beads.py      blocks as beads that light up
traffic.py      workloads for the real engine   template.py   a prompt as a template of parts
linter.py       what breaks the cache           editor.py     the prompt editor
cache_model.py  LRU, FIFO and time limits       traces.py     what a cache is asked, visit by visit
policies.py     who is remembered, drawn        tenants.py    70B with tenants, routers, long prefixes
instruments.py  pictures with sliders           tables.py     the lesson's tables
"""
