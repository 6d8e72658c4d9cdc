"""Open design rounds of 35 to 45 minutes, in stages.

prompt.py     what a round is, as its file says it         library/   the rounds
numbers.py    what follows from a round's numbers
board.py      boxes and arrows, and the rules they keep
sitting.py    what a candidate has asked, committed to and said
pages.py      the conversation, page by page                cli.py     in a terminal      desk.py   in a notebook
judge.py      points for what was committed to, and a verdict by level
history.py    what was played, when, and how it went
"""
