"""Block tables: gives requests the KV blocks they need, and finds the blocks they need not compute."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minillm.core.block_pool import BlockPool, blocks_for, extend_hashes
from minillm.core.request import Request
from minillm.core.seams import KeepAll, KVLayout


@dataclass(slots=True)
class BlockTable:
    """The blocks of one request: position p is in block_ids[p // block_size].

    With blocks of 4 tokens, a prompt whose first 8 tokens another request has computed, and 14 computed so far:

        tokens        0..3    4..7     8..11      12..13
        block_ids   [  7   ,   2    ,    9     ,    4      ]
                      shared with     its own,   its own,
                      the other one   full       half empty

    The list only grows, but for `truncate`, which takes back blocks behind rejected drafts. Reserved blocks would be
    the last ones, empty. Under a KV layout that lets go of blocks, some stand for nothing, after the first that it
    keeps: the null block N is in their place.

        block_ids   [  7   ,   N    ,    N     ,    4      ,   11   ]
                      kept     expired             in the window

    `append` then makes another list, which a runner that keeps tables must see.
    """

    block_ids: list[int]
    num_registered: int = 0
    """How many of them, from the first, were offered to the prefix index."""
    expired_end: int = 0
    """Index behind the last block that has expired."""


class BlockPlan(NamedTuple):
    """The table that a request without blocks is to have, before anything is taken for it."""

    end: int
    """The table has room for tokens [0, end)."""
    prefix: Sequence[int]
    """Blocks that `find_prefix` found, in order."""
    expired: range
    """Indices that the KV layout lets go of before the request begins: nothing is held there."""
    shared: list[int]
    """Blocks of the prefix that it will hold: those that have not expired."""
    num_fresh: int
    """Blocks to take from the pool, behind those."""
    num_free_needed: int
    """Blocks that must be free: the fresh ones, those of `shared` that no request holds, and what is to come soon."""


class BlockManager:
    """All block tables over one pool.

    Args:
        num_blocks: size of the pool.
        block_size: tokens per block.
        enable_prefix_caching: off = no block is ever hashed, so no lookup finds anything.
        reserve_tokens: every admitted request gets room for at least this many tokens right away. 0 is
            paging as in PagedAttention; the whole context window is what servers did before it.
        layout: which blocks a request keeps.
        pool: None = a BlockPool of that size.
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
    ) -> None:
        self.pool = pool or BlockPool(num_blocks)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.reserve_tokens = reserve_tokens
        self.layout = layout or KeepAll()
        self.hash_blocks: Callable[[Request, int], list[bytes]] = extend_hashes
        """(request, block_size) -> the names of its full blocks so far."""
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

    def plan(self, start: int, end: int, prefix: Sequence[int] = (), look_ahead_to: int = 0) -> BlockPlan:
        """What a request without blocks needs for its tokens [0, end), of which `start` are computed already.

        Args:
            prefix: blocks from `find_prefix` that it would share.
            look_ahead_to: blocks must be free for its tokens up to here; more than `end` are not taken yet.
        """
        expired = self.layout.expired(start)
        shared = [*prefix[: expired.start], *prefix[expired.stop :]]
        num_fresh = self._table_size(end) - len(expired) - len(shared)
        # A block that only caches something is a free block: sharing it uses it up as well.
        num_free_needed = num_fresh + len(shared) - self._num_in_use(shared)
        if look_ahead_to > end:
            num_later = num_free_needed + self._table_size(look_ahead_to) - self._table_size(end)
            num_free_needed = max(num_free_needed, self._at_peak(num_later, always_kept=prefix[: expired.start]))
        return BlockPlan(end, prefix, expired, shared, num_fresh, num_free_needed)

    def can_allocate(self, plan: BlockPlan) -> bool:
        """Whether enough blocks are free for it."""
        return plan.num_free_needed <= self.pool.num_free

    def allocate(self, request: Request, plan: BlockPlan) -> None:
        """Give a request its table.

        Raises:
            IndexError: too few blocks are free; nothing has changed.
        """
        if not self.can_allocate(plan):
            raise IndexError(f"{plan.num_free_needed} blocks wanted, {self.pool.num_free} free")
        self.pool.share(plan.shared)
        block_ids = plan.shared + self.pool.allocate(plan.num_fresh)
        block_ids[plan.expired.start : plan.expired.start] = [self.null_block] * len(plan.expired)
        table = BlockTable(block_ids, num_registered=len(plan.prefix), expired_end=plan.expired.stop)
        self.tables[request.request_id] = table
        self._register_full_blocks(request, table, plan.end)

    def append(self, request: Request, end: int) -> bool:
        """Grow a running request's table to its tokens [0, end), after letting go of blocks that no token to come
        will attend to. False, and nothing given, if too few blocks are free."""
        table = self.tables[request.request_id]
        if self.layout.expires:
            self._release_expired(request, table)
        if end > len(table.block_ids) * self.block_size:
            num_fresh = self._table_size(end) - len(table.block_ids)
            if num_fresh > self.pool.num_free:
                return False
            table.block_ids += self.pool.allocate(num_fresh)
        if end // self.block_size > table.num_registered:  # most steps of a decode fill no block
            self._register_full_blocks(request, table, end)
        return True

    def truncate(self, request: Request, end: int) -> None:
        """Take back the blocks behind its tokens [0, end), where rejected drafts were. They were never findable."""
        table = self.tables[request.request_id]
        num_kept = self._table_size(end)
        if blocks := table.block_ids[num_kept:]:
            self.pool.release(blocks)
            del table.block_ids[num_kept:]

    def free(self, request: Request) -> None:
        """Take back everything the request holds. Its full blocks stay findable until they are reused."""
        table = self.tables.pop(request.request_id, None)
        if table is not None:
            self.pool.release(self._without_null(table.block_ids))

    def unregister(self, request: Request, start: int = 0) -> None:
        """Take the request's blocks from token `start` on out of the prefix index: their contents are not to be
        trusted. It goes on holding them."""
        self.pool.forget(self._without_null(self.block_ids(request)[start // self.block_size :]))

    def block_ids(self, request: Request) -> list[int]:
        return self.tables[request.request_id].block_ids

    def held_blocks(self, request: Request, num_tokens: int | None = None) -> dict[int, int]:
        """The blocks it holds, index in its table -> block: all, or those of its first `num_tokens` tokens."""
        end = None if num_tokens is None else blocks_for(num_tokens, self.block_size)
        table = enumerate(self.block_ids(request)[:end])
        return {index: block_id for index, block_id in table if block_id != self.null_block}

    def _table_size(self, end: int) -> int:
        """Blocks in the table of a request that has room for its tokens [0, end), and for what is reserved."""
        return blocks_for(max(end, self.reserve_tokens), self.block_size)

    def _at_peak(self, num_blocks: int, always_kept: Sequence[int]) -> int:
        """`num_blocks`, or fewer under a layout in which no request ever holds as many.

        Args:
            always_kept: blocks of its prefix that never expire. Others that hold these save it a block for good.
        """
        if self.layout.peak_blocks is None or self.reserve_tokens:
            return num_blocks
        return min(num_blocks, self.layout.peak_blocks - self._num_in_use(always_kept))

    def _num_in_use(self, block_ids: Sequence[int]) -> int:
        """How many of these blocks any request holds."""
        return sum(self.pool.ref_counts[block_id] > 0 for block_id in block_ids)

    def _without_null(self, block_ids: Sequence[int]) -> Sequence[int]:
        """Blocks of a table, without those that have expired."""
        if self.null_block not in block_ids:  # nearly always: only a window leaves any
            return block_ids
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
        # before, no step has promised the contents. A promise that breaks is withdrawn: by `unregister` for a request
        # that is taken out of its step again (before any is admitted, so none can have shared it yet), and for all by
        # `Scheduler.invalidate` when a step fails. A block that ends in a pending token has no hash yet, and is
        # registered a step later.
        hashes, first = self._hashes(request), table.num_registered
        table.num_registered = max(min(end // self.block_size, len(hashes)), first)
        for block_id, block_hash in zip(table.block_ids[first : table.num_registered], hashes[first:]):
            if block_id != self.null_block:
                self.pool.register(block_id, block_hash)

    def _hashes(self, request: Request) -> list[bytes]:
        return self.hash_blocks(request, self.block_size) if self.enable_prefix_caching else []
