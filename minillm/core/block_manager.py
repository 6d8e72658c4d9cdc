"""Block tables: gives requests the KV blocks they need, and finds the blocks they need not compute."""

from dataclasses import dataclass, field

from minillm.core.block_pool import BlockPool, blocks_for, extend_chain
from minillm.core.request import Request
from minillm.policies.window import Window


@dataclass(slots=True)
class BlockTable:
    """The blocks of one request: position p is in block_ids[p // block_size]. Append-only, but that the null block
    takes the place of one that has left the sliding window, and that drafts which did not pass give theirs back."""

    block_ids: list[int] = field(default_factory=list)
    num_registered: int = 0
    """How many of them, from the first, were offered to the prefix index."""


class KVCacheManager:
    """All block tables over one pool.

    Args:
        num_blocks: size of the pool.
        block_size: tokens per block.
        enable_prefix_caching: off = no block is ever hashed, so no lookup finds anything.
        reserve_tokens: every admitted request gets room for at least this many tokens at once. 0 is
            paging as in PagedAttention; the whole context window is what servers did before it.
        window: what a token sees; None = all before it. Blocks that nobody will see again go back to the pool.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool,
        reserve_tokens: int,
        window: Window | None = None,
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self.window = window or Window()
        self.num_sinks = self.window.sink_blocks(block_size)
        self.null_block = num_blocks
        """Nobody's: the runner has one block more than the pool."""
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.reserve_tokens = reserve_tokens
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

    def allocate(self, request: Request, end: int, prefix: list[int] | None = None) -> bool:
        """Give the request room for its tokens [0, end), and take back what no token to come will see. False, and
        nothing given, if the pool is short.

        Args:
            prefix: on admission, the blocks from :meth:`find_prefix` that it will share.
        """
        prefix = prefix or []
        table, num_holes = self.tables.get(request.request_id), 0
        if table is None:
            table, num_holes = BlockTable(), self._holes(request, len(prefix))
        else:
            self._give_back(request, table)
        shared = prefix[: self.num_sinks] + prefix[self.num_sinks + num_holes :]
        num_present = len(table.block_ids) + num_holes + len(shared)
        num_needed = self.blocks_for(max(end, self.reserve_tokens)) - num_present
        if num_needed > 0 or prefix:
            # A prefix block that nobody holds is a free one: sharing it uses it up as well.
            num_revived = sum(self.pool.ref_counts[block_id] == 0 for block_id in shared)
            if max(num_needed, 0) + num_revived > self.pool.num_free:
                return False
            self.pool.share(shared)
            added = shared + self.pool.allocate(max(num_needed, 0))
            added[self.num_sinks : self.num_sinks] = [self.null_block] * num_holes
            table.block_ids += added
            table.num_registered += len(prefix)
            self.tables[request.request_id] = table
        self._register_full_blocks(request, table, end)
        return True

    def could_hold(self, end: int, prefix: list[int], chunk: int) -> bool:
        """Whether blocks are free for a newcomer's tokens [0, end), as many as it will hold at once.

        Args:
            prefix: blocks from :meth:`find_prefix` that it would share.
            chunk: most tokens of it that a step computes; with a window it holds little more.
        """
        begin = self.window.first_block(len(prefix) * self.block_size, self.block_size)
        # Of the prefix: blocks that others hold and it will too. Those behind the sinks leave its window in time.
        sinks, rest = (self._num_held(blocks) for blocks in (prefix[: self.num_sinks], prefix[begin:]))
        num_holes = begin - self.num_sinks
        num_needed = self.blocks_for(max(end, self.reserve_tokens)) - num_holes - sinks - rest
        most = self.window.most_blocks(chunk + 1, self.block_size)
        if most is not None:
            num_needed = min(num_needed, most - sinks)
        return num_needed <= self.pool.num_free

    def free(self, request: Request) -> None:
        """Take back everything the request holds. Its full blocks stay findable until they are reused."""
        table = self.tables.pop(request.request_id, None)
        if table is not None:
            self.pool.release(self._held(table))

    def cut(self, request: Request, end: int) -> None:
        """Take back the blocks behind its tokens [0, end): what was put there are drafts that did not pass. Such blocks
        were never findable."""
        table = self.tables[request.request_id]
        num_kept = self.blocks_for(max(end, self.reserve_tokens))
        if blocks := table.block_ids[num_kept:]:
            self.pool.release(blocks)
            del table.block_ids[num_kept:]

    def disown(self, request: Request, start: int = 0) -> None:
        """What was computed for the request from token `start` on is not to be trusted: nobody may find its blocks."""
        self.pool.forget(self._held(self.tables[request.request_id], slice(start // self.block_size, None)))

    def block_ids(self, request: Request) -> list[int]:
        return self.tables[request.request_id].block_ids

    def held_blocks(self, request: Request, num_tokens: int | None = None) -> list[int]:
        """Those of its blocks that it holds, in order: all, or those of its first `num_tokens` tokens."""
        end = None if num_tokens is None else self.blocks_for(num_tokens)
        return self._held(self.tables[request.request_id], slice(end))

    def blocks_for(self, num_tokens: int) -> int:
        return blocks_for(num_tokens, self.block_size)

    def check_integrity(self) -> None:
        self.pool.check_integrity(self._held(table) for table in self.tables.values())

    def _held(self, table: BlockTable, part: slice = slice(None)) -> list[int]:
        return [block_id for block_id in table.block_ids[part] if block_id != self.null_block]

    def _num_held(self, block_ids: list[int]) -> int:
        """How many of these some request holds."""
        return sum(self.pool.ref_counts[block_id] > 0 for block_id in block_ids)

    def _holes(self, request: Request, num_prefix_blocks: int) -> int:
        """On admission: how many blocks after the sinks it need not have. It starts behind a prefix that was found,
        or was swapped out with what it then held."""
        if self.window.size is None:  # also of a draft model: `window_begin` is not about its blocks
            return 0
        if request.num_computed_tokens == 0:
            request.window_begin = self.window.first_block(num_prefix_blocks * self.block_size, self.block_size)
        return max(request.window_begin - self.num_sinks, 0)

    def _give_back(self, request: Request, table: BlockTable) -> None:
        # Its next token may be the last known one again, after drafts that were rejected.
        position = min(request.num_computed_tokens, request.num_known_tokens - 1)
        begin = self.window.first_block(position, self.block_size)
        gone = slice(max(request.window_begin, self.num_sinks), begin)
        if blocks := table.block_ids[gone]:
            self.pool.release(blocks)
            table.block_ids[gone] = [self.null_block] * len(blocks)
            request.window_begin = begin

    def _register_full_blocks(self, request: Request, table: BlockTable, end: int) -> None:
        # Blocks are registered when the step that fills them is scheduled, not when it is done. That is
        # safe: in every layer a step writes all its keys and values before anyone's attention reads them,
        # so a request admitted into the same step may already share them. A block that ends in a pending token
        # has no hash yet: it is registered a step later.
        hashes = self._hashes(request)
        for i in range(table.num_registered, min(end // self.block_size, len(hashes))):
            if table.block_ids[i] != self.null_block:
                self.pool.register(table.block_ids[i], hashes[i])
            table.num_registered = i + 1

    def _hashes(self, request: Request) -> list[bytes]:
        return extend_chain(request, self.block_size) if self.enable_prefix_caching else []
