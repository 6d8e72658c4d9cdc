"""Interview drills: a prompt against the clock, scored by rules that quote the words they go by.

drill.py     what a drill is        library/, texts/   the drills, their rubrics and their model answers
amounts.py   numbers with units     words.py, .toml    concepts and their synonyms, in one place
reading.py   an answer as rules see it                 patterns.py   the language of rules
scoring.py   points by dimension    rules.toml         popular errors, traps and follow-ups of every drill
grade.py     levels, caps, follow-ups, how a grade is shown
desk.py      prompt, timer and answer in a notebook    attempts.py   what is kept    report.py   a page to print
judge.py     a second opinion from a language model, only if asked for               cli.py   `minillm drill`
"""
