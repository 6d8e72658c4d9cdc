"""Napkin sums: a question of one minute, answered by a number with a unit, with the working behind it.

    today = napkin_of_day(date.today())
    today.question
    today.judge("25 ms")       # Verdict.RIGHT, RIGHT_ORDER or OFF
    today.working

Figures of models and cards are the simulator's, formulas those of the drills and the lessons. A template draws the
rest; nothing is simulated.
"""
