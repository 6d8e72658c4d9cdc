"""Interview drills: a prompt against the clock, an interviewer who answers and pushes back, and a verdict.

drill.py        what a drill is: numbers, rubric, samples   library/, texts/, talk/   the drills
checks.py       what was committed to, from menus (stated.py) and as a number with its unit (amounts.py)
statements.py   eight statements on the table: agree or disagree, and how sure
calibrate.py    the learner's own grade, weighed by how well they graded two of five samples
judge.py        a judge model, if there is one, heard only after it has graded all five
interviewer.py  facts that are told when asked for, pushback one question at a time
verdict.py      a level and why, sentences that helped and hurt
sitting.py      one answer on its way through all of it: `sit`   attempts.py, report.py   what is kept, a page to print
stages.py       what is asked after the writing, and in a terminal: cli.py     desk.py   in a notebook
mock.py         a mock interview of 45 minutes
"""
