"""The random numbers that tokens are drawn by."""

import hashlib


def uniform(seed: int, position: int, purpose: str = "") -> float:
    """A number in [0, 1) that depends on (seed, position, purpose) and on nothing else.

    A cryptographic hash used as a counter-based generator (Salmon et al., "Parallel random numbers:
    as easy as 1, 2, 3", 2011): its output is as good as random for any pattern of inputs, and one
    call takes about a microsecond, where drawing noise for V tokens would cost V draws.
    """
    digest = hashlib.blake2b(f"{seed}:{position}{purpose}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 12) * 2.0**-52
