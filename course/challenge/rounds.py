"""Which seeds a score is counted on.

Practice seeds are public. A round's are not: anyone who holds a contest publishes the hash of a salt before it and the
salt after it, so nobody can tune to its seeds and nobody can exchange them. Without a contest, a month is a round: its
seeds follow from its name, so they're hidden only from those who don't look, but they're the same for everybody and new
each month.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from minillm.core.errors import MinillmError

PRACTICE = (1, 2, 3)
SEEDS_PER_ROUND = 3
SHORTEST_SALT = 16
"""Characters. A short one could be found from its hash by trying."""
SEALED, CHOSEN = "sealed-", "seeds-"


class RoundError(MinillmError):
    """There is no such round, or the salt is not this round's."""


@dataclass(frozen=True)
class Round:
    """A name, and the seeds of its traces."""

    name: str
    seeds: tuple[int, ...]

    @classmethod
    def practice(cls) -> "Round":
        return cls("practice", PRACTICE)

    @classmethod
    def of_seeds(cls, seeds: Sequence[int]) -> "Round":
        """Seeds of one's own choice, which the name tells.

        Raises:
            RoundError: one is negative.
        """
        if min(seeds) < 0:
            raise RoundError(f"a seed is 0 or more, not {min(seeds)}")
        return cls(CHOSEN + "-".join(map(str, seeds)), tuple(seeds))

    @classmethod
    def of_month(cls, month: str | None = None) -> "Round":
        """Args:
            month: as 2026-11; None = this one, in UTC.
        Raises:
            RoundError: it is no month.
        """
        month = month or datetime.now(UTC).strftime("%Y-%m")
        if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", month):
            raise RoundError(f"a round is a month, as 2026-11, not {month!r}; for a contest's own use --salt")
        return cls(month, _seeds_from(f"minillm beat/{month}"))

    @classmethod
    def of_salt(cls, salt: str) -> "Round":
        """Raises:
        RoundError: it is so short that its hash gives it away.
        """
        if len(salt) < SHORTEST_SALT:
            raise RoundError(
                f"a salt has at least {SHORTEST_SALT} characters, or it can be found from its hash by trying"
            )
        return cls(SEALED + _hash_of(f"minillm beat/sealed/{salt}")[:16], _seeds_from(f"minillm beat/{salt}"))

    @classmethod
    def named(cls, name: str, salt: str | None) -> "Round":
        """The round of a line to share.

        Raises:
            RoundError: a sealed round without its salt, or with another one.
        """
        if name == "practice":
            return cls.practice()
        if re.fullmatch(rf"{CHOSEN}\d+(-\d+)*", name):
            return cls.of_seeds([int(seed) for seed in name.removeprefix(CHOSEN).split("-")])
        if not name.startswith(SEALED):
            return cls.of_month(name)
        if salt is None:
            raise RoundError(f"{name} is sealed: its salt is published when the contest is over; then pass --salt")
        found = cls.of_salt(salt)
        if found.name != name:
            raise RoundError(f"this salt's round is {found.name}, not {name}: the salt was exchanged, or is another's")
        return found


def _hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _seeds_from(text: str) -> tuple[int, ...]:
    return tuple(int(_hash_of(f"{text}/{number}")[:12], 16) for number in range(SEEDS_PER_ROUND))
