"""What the scheduler does with a block manager, in one call."""

from collections.abc import Sequence

from minillm.core.block_manager import BlockManager
from minillm.core.request import Request


def make_room(kv: BlockManager, request: Request, end: int, prefix: Sequence[int] = ()) -> bool:
    """Room for the request's tokens [0, end), whether it has blocks already or not. False if the pool is short."""
    if request.request_id in kv.tables:
        return kv.append(request, end)
    start = request.num_computed_tokens or len(prefix) * kv.block_size
    plan = kv.plan(start, end, prefix)
    if fits := kv.can_allocate(plan):
        kv.allocate(request, plan)
    return fits
