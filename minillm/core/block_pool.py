"""The pool of KV blocks: reference counts, free blocks in eviction order, and the prefix index.

A block is free when no request holds it, but a free block may still *cache* a prefix: its hash stays in the index
until the block is handed out again. So the cache costs no memory that a request wants. (After vLLM v1's block pool,
which keeps both kinds in one linked list.)

A full block is named by everything from the start of the prompt up to its end. Two requests that agree on their first
k blocks have the same first k hashes, and nothing else makes them equal, since the hash of a block covers the hash of
the block before it. So the longest shared prefix is found by walking the chain until a hash is unknown (vLLM's
automatic prefix caching).
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from minillm.core.request import Request

ROOT = b"minillm"


def block_hashes(parent: bytes, token_ids: Sequence[int], block_size: int) -> list[bytes]:
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


def root_of(cache_salt: str) -> bytes:
    """The parent of a request's first block. A salt makes it another one, and so all names after it: requests with
    different salts share no block, and none can tell from its time to first token what another has sent."""
    # A key of its own: no salt may yield the name of a block.
    return hashlib.blake2b(cache_salt.encode(), key=b"salt", digest_size=16).digest() if cache_salt else ROOT


def extend_hashes(request: Request, block_size: int) -> list[bytes]:
    """Bring `request.block_hashes` up to date with its known tokens: one hash per full block. Returns it."""
    hashes, num_known = request.block_hashes, request.num_known_tokens
    start = len(hashes) * block_size
    if start + block_size <= num_known:
        parent = hashes[-1] if hashes else root_of(request.cache_salt)
        hashes += block_hashes(parent, request.token_ids(start, num_known), block_size)
    return hashes


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-num_tokens // block_size)


class FreeBlocks:
    """Free blocks in the order they will be handed out: those that cache nothing, then the least recently used.

    All operations are O(1) per block. An OrderedDict is a doubly linked list with a way in from the middle: a
    block that is hit leaves it without a walk to it.
    """

    def __init__(self, num_blocks: int) -> None:
        self.plain = list(range(num_blocks - 1, -1, -1))
        """Blocks that cache nothing; the last is handed out next."""
        self.cached: OrderedDict[int, None] = OrderedDict()
        """Blocks that cache a prefix, least recently used first."""

    def __len__(self) -> int:
        return len(self.plain) + len(self.cached)

    def __iter__(self) -> Iterator[int]:
        yield from reversed(self.plain)
        yield from self.cached

    def add(self, block_ids: Sequence[int], hashes: Sequence[bytes | None]) -> None:
        """Blocks become free, to be handed out in this order; one that has a hash caches a prefix."""
        plain = [block_id for block_id in block_ids if hashes[block_id] is None]
        self.plain += plain
        if len(plain) < len(block_ids):
            self.cached.update((block_id, None) for block_id in block_ids if hashes[block_id] is not None)

    def take(self, count: int) -> tuple[list[int], list[int]]:
        """The next `count` blocks: those that cached nothing, and those that did."""
        first = max(len(self.plain) - count, 0)
        plain = self.plain[first:][::-1]
        del self.plain[first:]
        return plain, [self.cached.popitem(last=False)[0] for _ in range(count - len(plain))]

    def take_cached(self, block_id: int) -> None:
        """Take this one, for what it caches."""
        del self.cached[block_id]


class BlockPool:
    """`num_blocks` KV blocks, each free or held by one or more requests.

    Args:
        free: all of them, in the order in which they are to be handed out; None = the least recently used first.
    """

    def __init__(self, num_blocks: int, free: FreeBlocks | None = None) -> None:
        self.ref_counts = [0] * num_blocks
        """How many requests hold each block."""
        self.hashes: list[bytes | None] = [None] * num_blocks
        """The prefix each block is indexed under."""
        self.index: dict[bytes, int] = {}
        """Prefix index: hash of a full block (and all before it) -> the block that holds it."""
        self.free = FreeBlocks(num_blocks) if free is None else free

    def __len__(self) -> int:
        return len(self.ref_counts)

    @property
    def num_free(self) -> int:
        return len(self.free)

    @property
    def num_used(self) -> int:
        return len(self) - len(self.free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, in the order of `free`; whatever prefix they cached is forgotten.

        Raises:
            IndexError: fewer are free. Callers check `num_free` first.
        """
        if count > self.num_free:
            raise IndexError(f"{count} blocks wanted, {self.num_free} free")
        plain, evicted = self.free.take(count)
        hashes, index = self.hashes, self.index
        for block_id in evicted:
            del index[hashes[block_id]]  # type: ignore[arg-type]  # it caches something
            hashes[block_id] = None
        taken = plain + evicted
        for block_id in taken:
            self.ref_counts[block_id] = 1
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """One more holder for each block: a prefix hit. Free ones are free no more."""
        for block_id in block_ids:
            if self.ref_counts[block_id] == 0:
                self.free.take_cached(block_id)
            self.ref_counts[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """One holder less for each block of a block table, given in table order.

        Blocks are freed last to first, so that the tail of a sequence is evicted before its head: a
        prefix is only useful while everything before it is still there.
        """
        counts = self.ref_counts
        for block_id in block_ids:
            if counts[block_id] <= 0:
                raise ValueError(f"block {block_id} is released but no request holds it")
            counts[block_id] -= 1
        self.free.add([block_id for block_id in reversed(block_ids) if counts[block_id] == 0], self.hashes)

    def register(self, block_id: int, block_hash: bytes) -> None:
        """Enter a full block in the prefix index. If an equal block is there already, it stays the one."""
        if block_hash not in self.index:
            self.index[block_hash] = block_id
            self.hashes[block_id] = block_hash

    def expire(self, now: float) -> None:
        """Forget the prefixes that may no longer be found at `now` (clock seconds). Called before each step is put
        together and never during it, so that a lookup and what is done with its outcome see the same index."""

    def find(self, block_hash: bytes) -> int | None:
        """The block that caches this prefix, or None."""
        return self.index.get(block_hash)

    def forget(self, block_ids: Iterable[int]) -> None:
        """Take some blocks out of the prefix index. Requests keep the blocks they hold."""
        for block_id in block_ids:
            if (block_hash := self.hashes[block_id]) is not None:
                del self.index[block_hash]
                self.hashes[block_id] = None
                if self.ref_counts[block_id] == 0:
                    self.free.take_cached(block_id)
                    self.free.add([block_id], self.hashes)

    def forget_prefixes(self) -> None:
        """Empty the prefix index. Requests keep the blocks they hold."""
        self.forget(list(self.index.values()))
