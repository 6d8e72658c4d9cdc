"""Prefix hashes: each full block is named by everything from the start of the prompt up to its end.

Two requests that agree on their first k blocks have the same first k hashes, and nothing else makes
them equal: the hash of a block covers the hash of the block before it. So the longest shared prefix
is found by walking the chain until a hash is unknown (vLLM's automatic prefix caching).
"""

import hashlib
from array import array
from collections.abc import Sequence

from minillm.request import Request

ROOT = b"minillm"


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """16 bytes that name the block with these tokens, after the prefix named `parent`.

    A cryptographic hash, because a collision would serve one user another user's text.
    """
    return hashlib.blake2b(array("q", token_ids).tobytes(), key=parent, digest_size=16).digest()


def extend_chain(request: Request, block_size: int) -> list[bytes]:
    """Bring `request.block_hashes` up to date with its known tokens: one hash per full block. Returns it."""
    hashes = request.block_hashes
    for start in range(len(hashes) * block_size, request.num_known_tokens - block_size + 1, block_size):
        parent = hashes[-1] if hashes else ROOT
        hashes.append(block_hash(parent, request.token_ids(start, start + block_size)))
    return hashes
