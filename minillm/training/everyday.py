"""Questions as users ask them, put together from ways to ask and things to ask about (everyday.toml).

What a small model thinks up by itself is stranger and longer than what people ask, and its answers to that are unlike
its answers to them: of a head that had learned from such conversations alone, 58% of the first guesses were right
there, and 47% in the answers to plain questions. Only the questions come from here; every answer is the model's own.
"""

import random
import tomllib
from functools import cache
from importlib import resources

SLOPPY_SHARE = 0.1
"""Of the questions: how many are typed in small letters, without the mark at their end."""


@cache
def everyday_questions() -> tuple[str, ...]:
    """All of them, each once, in an order that is always the same and mixes the kinds."""
    text = (resources.files("minillm.training") / "everyday.toml").read_text(encoding="utf-8")
    kinds = tomllib.loads(text).values()
    every = [way.replace("{}", subject) for kind in kinds for way in kind["asks"] for subject in kind["about"]]
    questions = sorted(set(every))
    draws = random.Random("everyday questions")
    draws.shuffle(questions)
    return tuple(each.lower().rstrip("?.!") if draws.random() < SLOPPY_SHARE else each for each in questions)
