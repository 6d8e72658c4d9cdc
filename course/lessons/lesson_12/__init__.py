"""What lesson 12 shows: incidents played in cells, look-alikes side by side, and what every change would have done.

services.py   the incidents of the lesson, and changes tried on them
twins.py      two incidents that look alike, question by question
real.py       the same two illnesses on the engine of this machine
"""
