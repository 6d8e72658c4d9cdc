"""Prefix hashes: each full block is named by everything from the start of the prompt up to its end.

Two requests that agree on their first k blocks have the same first k hashes, and nothing else makes
them equal: the hash of a block covers the hash of the block before it. So the longest shared prefix
is found by walking the chain until a hash is unknown (vLLM's automatic prefix caching).
"""

import hashlib
from array import array
from collections.abc import Sequence

import numpy as np

from minillm.request import Request

ROOT = b"minillm"


def block_hashes(parent: bytes, token_ids: Sequence[int] | np.ndarray, block_size: int) -> list[bytes]:
    """16 bytes for each block of these tokens, which follow the prefix named `parent`. A last partial block has none.

    A cryptographic hash, because a collision would serve one user another user's text.
    """
    tokens = array("q", token_ids)
    content, size = tokens.tobytes(), block_size * tokens.itemsize
    hashes = []
    for start in range(0, len(content) - size + 1, size):
        parent = hashlib.blake2b(content[start : start + size], key=parent, digest_size=16).digest()
        hashes.append(parent)
    return hashes


def extend_chain(request: Request, block_size: int) -> list[bytes]:
    """Bring `request.block_hashes` up to date with its known tokens: one hash per full block. Returns it."""
    hashes, num_known = request.block_hashes, request.num_known_tokens
    start = len(hashes) * block_size
    if start + block_size <= num_known:
        parent = hashes[-1] if hashes else ROOT
        hashes += block_hashes(parent, request.token_ids(start, num_known), block_size)
    return hashes
