"""The text that workloads are made of: plain paragraphs and plain questions, from texts.toml."""

import tomllib
from pathlib import Path

_TEXTS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CHAT_QUESTIONS = tuple(_TEXTS["chat_questions"])
MANUAL = tuple(_TEXTS["manual"])
"""A handbook for a small harbour: the shared context of the RAG workload and the pages of the long document."""
MANUAL_QUESTIONS = tuple(_TEXTS["manual_questions"])
