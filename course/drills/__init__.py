"""Interview drills: a prompt against the clock, and three graders that share one rubric and say what they cannot judge.

drill.py     what a drill is: numbers, rubric, samples    library/, texts/   the drills
checks.py    grader 1: what was committed to, numbers and sums (amounts.py), statements (stated.py, falsehoods.py)
calibrate.py grader 2: the learner, weighed by how well they graded two samples
judge.py     grader 3: a judge model, only if asked for
sitting.py   one answer on its way through them           attempts.py, report.py   what is kept, a page to print
stages.py    what is asked after the writing, and in a terminal: cli.py     desk.py   in a notebook
mock.py      a mock interview of 45 minutes
"""
