"""What can be stated in a commitment: causes and techniques by id, from stated.toml, and which act on which."""

import functools
import tomllib
from pathlib import Path
from typing import Any


@functools.cache
def table() -> dict[str, Any]:
    """stated.toml."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def menu(group: str) -> dict[str, str]:
    """What can be committed to, by id: `causes` or `techniques`."""
    labels: dict[str, str] = table()[group]
    return labels


def label(key: str) -> str:
    """What a cause or a technique is called; of an id that both have, the cause. Any other text is left as it is."""
    return menu("causes").get(key) or menu("techniques").get(key) or key


def acts_on(technique: str, key: str) -> bool:
    """Whether a technique is one to turn to where a finding bears on a cause, or on that technique itself."""
    return technique == key or technique in table()["remedies"].get(key, ())
