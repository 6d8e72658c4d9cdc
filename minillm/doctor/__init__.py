"""`minillm doctor`: what this machine has of what minillm uses, at what speed, and how to get what is missing.

The process that collects the findings imports only the standard library: `python -m minillm.doctor` answers whatever
else is broken. Where Python itself is too old, it says which one to get (minillm/host/pythons.py).
"""
