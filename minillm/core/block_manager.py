"""Block tables: gives requests the KV blocks they need, and finds the blocks they need not compute."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from minillm.core.block_pool import BlockPool, blocks_for, extend_hashes
from minillm.core.request import Request
from minillm.core.seams import KeepAll, KVLayout


@dataclass(slots=True)
class BlockTable:
    """The blocks of one request: position p is in block_ids[p // block_size].

        kept by the layout | expired: null block | found, shared | full, own | last, partial | drafts | reserved

    A list is append-only but for `truncate`, which gives back what is behind rejected drafts. Where the KV layout lets
    go of blocks, `append` makes another list, with the null block in their place: a runner that keeps tables must see
    that. With the default policies nothing expires, and no drafts or reservations follow.
    """

    block_ids: list[int]
    num_registered: int = 0
    """How many of them, from the first, were offered to the prefix index."""
    expired_end: int = 0
    """Where the part that the KV layout has let go of ends, as an index."""


class BlockManager:
    """All block tables over one pool.

    Args:
        num_blocks: size of the pool.
        block_size: tokens per block.
        enable_prefix_caching: off = no block is ever hashed, so no lookup finds anything.
        reserve_tokens: every admitted request gets room for at least this many tokens at once. 0 is
            paging as in PagedAttention; the whole context window is what servers did before it.
        layout: which blocks a request keeps.
        pool: None = a BlockPool of that size.
        hash_blocks: (request, block_size) -> the names of its full blocks so far.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        reserve_tokens: int = 0,
        layout: KVLayout | None = None,
        pool: BlockPool | None = None,
        hash_blocks: Callable[[Request, int], list[bytes]] = extend_hashes,
    ) -> None:
        self.pool = pool or BlockPool(num_blocks)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.reserve_tokens = reserve_tokens
        self.layout = layout or KeepAll()
        self.hash_blocks = hash_blocks
        self.null_block = num_blocks
        """No request's: the runner has one block more than the pool, which padding and expired entries point to."""
        self.tables: dict[str, BlockTable] = {}

    def find_prefix(self, request: Request) -> list[int]:
        """Blocks that already hold the longest cached prefix of the request's tokens.

        At least one token is always left to compute: without it there would be no logits to sample from.
        """
        found = []
        longest = (request.num_tokens - 1) // self.block_size
        for block_hash in self._hashes(request)[:longest]:
            block_id = self.pool.find(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def can_allocate(self, start: int, end: int, prefix: Sequence[int] = ()) -> bool:
        """Whether blocks are free for a new request's tokens [0, end), of which `start` are computed already.

        Args:
            prefix: blocks from `find_prefix` that it would share. One that no request holds is a free block: sharing
                it uses it up as well.
        """
        expired = self.layout.expired(start)
        num_needed = self._room_for(end) - len(expired) - self._num_held_by_others(without(prefix, expired))
        if self.layout.peak_blocks is not None and not self.reserve_tokens:
            # Of what it shares, it keeps what lies before the part that expires.
            kept = self._num_held_by_others(prefix[: expired.start])
            num_needed = min(num_needed, self.layout.peak_blocks - kept)
        return num_needed <= self.pool.num_free

    def allocate(self, request: Request, start: int, end: int, prefix: Sequence[int] = ()) -> None:
        """Give a request without blocks room for its tokens [0, end). Arguments as in `can_allocate`.

        Raises:
            IndexError: the pool is short; nothing has changed.
        """
        expired = self.layout.expired(start)
        shared = without(prefix, expired)
        num_blocks = self._room_for(end)
        revived = sum(self.pool.ref_counts[block_id] == 0 for block_id in shared)
        num_fresh = num_blocks - len(expired) - len(shared)
        if num_fresh + revived > self.pool.num_free:
            raise IndexError(f"{num_fresh + revived} blocks wanted, {self.pool.num_free} free")
        self.pool.share(shared)
        held = iter(shared + self.pool.allocate(num_fresh))
        block_ids = [self.null_block if i in expired else next(held) for i in range(num_blocks)]
        table = BlockTable(block_ids, num_registered=len(prefix), expired_end=expired.stop)
        self.tables[request.request_id] = table
        self._register_full_blocks(request, table, end)

    def append(self, request: Request, end: int) -> bool:
        """Grow a running request's table to its tokens [0, end), after letting go of blocks that no token to come
        will attend to. False, and nothing given, if the pool is short."""
        table = self.tables[request.request_id]
        if self.layout.peak_blocks is not None:
            self._release_expired(request, table)
        if end > len(table.block_ids) * self.block_size:
            num_fresh = blocks_for(end, self.block_size) - len(table.block_ids)
            if num_fresh > self.pool.num_free:
                return False
            table.block_ids += self.pool.allocate(num_fresh)
        if end // self.block_size > table.num_registered:  # most steps of a decode fill no block
            self._register_full_blocks(request, table, end)
        return True

    def truncate(self, request: Request, end: int) -> None:
        """Take back the blocks behind its tokens [0, end), where rejected drafts were. They were never findable."""
        table = self.tables[request.request_id]
        num_kept = self._room_for(end)
        if blocks := table.block_ids[num_kept:]:
            self.pool.release(blocks)
            del table.block_ids[num_kept:]

    def free(self, request: Request) -> None:
        """Take back everything the request holds. Its full blocks stay findable until they are reused."""
        table = self.tables.pop(request.request_id, None)
        if table is not None:
            self.pool.release(self._held(table.block_ids))

    def invalidate(self, request: Request, start: int = 0) -> None:
        """What was computed for the request from token `start` on is not to be trusted: its blocks can't be found
        any more."""
        self.pool.forget(self._held(self.block_ids(request)[start // self.block_size :]))

    def block_ids(self, request: Request) -> list[int]:
        return self.tables[request.request_id].block_ids

    def held_blocks(self, request: Request, num_tokens: int | None = None) -> dict[int, int]:
        """The blocks it holds, index in its table -> block: all, or those of its first `num_tokens` tokens."""
        end = None if num_tokens is None else blocks_for(num_tokens, self.block_size)
        table = enumerate(self.block_ids(request)[:end])
        return {index: block_id for index, block_id in table if block_id != self.null_block}

    def check_integrity(self) -> None:
        """Raise AssertionError unless tables and pool agree. For tests and soaks."""
        self.pool.check_integrity(self._held(table.block_ids) for table in self.tables.values())

    def _room_for(self, end: int) -> int:
        return -(-max(end, self.reserve_tokens) // self.block_size)

    def _num_held_by_others(self, block_ids: Sequence[int]) -> int:
        return sum(self.pool.ref_counts[block_id] > 0 for block_id in block_ids)

    def _held(self, block_ids: Sequence[int]) -> list[int]:
        return [block_id for block_id in block_ids if block_id != self.null_block]

    def _release_expired(self, request: Request, table: BlockTable) -> None:
        # Drafts may be counted as computed here and be rejected later: the next token is at most the last known one.
        position = min(request.num_computed_tokens, request.num_known_tokens - 1)
        expired = self.layout.expired(position)
        gone = slice(max(table.expired_end, expired.start), expired.stop)
        if blocks := table.block_ids[gone]:
            self.pool.release(blocks)
            table.block_ids = [*table.block_ids]
            table.block_ids[gone] = [self.null_block] * len(blocks)
            table.expired_end = expired.stop

    def _register_full_blocks(self, request: Request, table: BlockTable, end: int) -> None:
        # A block becomes findable when the step that fills it is scheduled, not when it is done, so that equal prompts
        # that arrive together share from the first step on. That is safe: in every layer a step writes all its keys
        # and values before any attention reads them, and steps run in the order they are launched. It can't be sooner:
        # before, no step has promised the contents. A promise that breaks is withdrawn by `invalidate`: for a request
        # that is taken out of its step again (before any is admitted, so none can have shared it yet), and for all
        # when a step fails. A block that ends in a pending token has no hash yet, and is registered a step later.
        hashes = self._hashes(request)
        for i in range(table.num_registered, min(end // self.block_size, len(hashes))):
            if table.block_ids[i] != self.null_block:
                self.pool.register(table.block_ids[i], hashes[i])
            table.num_registered = i + 1

    def _hashes(self, request: Request) -> list[bytes]:
        return self.hash_blocks(request, self.block_size) if self.enable_prefix_caching else []


def without(block_ids: Sequence[int], indices: Collection[int]) -> list[int]:
    """The blocks of a table but those at some indices."""
    return [block_id for index, block_id in enumerate(block_ids) if index not in indices]
