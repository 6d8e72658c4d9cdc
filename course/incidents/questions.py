"""All that can be asked, in every incident. Texts, minutes and the words of the answers are in questions.toml."""

import tomllib
from pathlib import Path

from course.incidents import questions_clients as clients
from course.incidents import questions_server as server
from course.incidents.evidence import EvidenceQuestion

_WRITTEN = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
QUESTIONS = tuple(
    EvidenceQuestion(name, look=getattr(clients, name, None) or getattr(server, name), **words)
    for name, words in _WRITTEN.items()
)
"""In the order of the file. A function of the same name looks the answer up."""
BY_ID = {question.id: question for question in QUESTIONS}
