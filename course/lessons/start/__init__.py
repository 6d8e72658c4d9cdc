"""The start page: where to go on, the map, three paths, review cards.

contents.py   the lessons, and how long each takes      paths.py    three orders to take them in
resume.py     what is done, and what comes next         cards.py, facts.py, review.py   spaced review
"""
