"""Everything that can be wrong with a service: how it falls ill, and what convicts, cures and does not cure it.

queue.py, prefill.py, decode.py, outside.py, hardware.py   a function each: from a draw to a service before and now
causes.toml                                   what is said of each, in the order of which seeds choose
"""

import tomllib
from pathlib import Path

from course.incidents.causes import decode, hardware, outside, prefill, queue
from course.incidents.causes.base import Case, Cause, Draw

_MAKERS = {
    name: maker for module in (queue, prefill, decode, outside, hardware) for name, maker in vars(module).items()
}
CAUSES: dict[str, Cause] = {
    name: Cause(name, make=_MAKERS[name], **{k: tuple(v) if isinstance(v, list) else v for k, v in words.items()})
    for name, words in tomllib.loads(Path(__file__).with_name("causes.toml").read_text(encoding="utf-8")).items()
}
"""By name."""

__all__ = ["CAUSES", "Case", "Cause", "Draw"]
