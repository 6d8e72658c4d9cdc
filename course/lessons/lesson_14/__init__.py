"""The claims ledger: a row for every claim that the course puts to the test, each with a cell that measures it.

measuring.py     finds each claim's experiment
records.py       what was found, kept in a file   ledger.py     measure, filter, export
rows.py          how a row looks                  claim_map.py  all claims in one picture
panel.py         the ledger with filters and buttons
techniques.py    one claim's experiment: a table of techniques, filled in for four workloads
"""

from course.lessons.lesson_14.ledger import Ledger
from course.lessons.lesson_14.panel import LedgerPanel

__all__ = ["Ledger", "LedgerPanel"]
