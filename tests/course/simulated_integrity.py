"""The checks of tests/engine/integrity.py for simulated engines, and for a fleet of them.

Import them from here where an engine may fast-forward: some of its requests are out of the scheduler's sight, and its
blocks may only be counted.
"""

from collections.abc import Iterable, Sequence

from integrity import check_core, check_engine, check_pool

from course.simulator.cluster.run import FleetRun
from course.simulator.counted_blocks import CountedBlocks
from course.simulator.fast_forward import FastForwardCore
from minillm.core.engine import EngineCore

__all__ = ["check_conservation", "check_engine", "check_pool"]


@check_core.register
def _check_fast_forward(core: FastForwardCore) -> None:
    for parked in core.lot:
        core._unpark(parked)
    check_core.dispatch(EngineCore)(core)


@check_pool.register
def _check_counted(pool: CountedBlocks, tables: Iterable[Sequence[int]]) -> None:
    held = sum(map(len, tables))
    assert held == pool.num_used, f"{pool.num_used} blocks counted as held, and tables have {held}"


def check_conservation(run: FleetRun) -> None:
    """Every request ended once, and every engine is empty."""
    assert all(record.outcome is not None for record in run.records), "a request never ended"
    for pool in run.pools.values():
        assert pool.outstanding == 0, f"{pool.name} still holds {pool.outstanding} jobs"
        for replica in pool.replicas:
            check_engine(replica.engine)
            assert not replica.engine.has_unfinished, f"{replica.name} has not finished"
            assert replica.engine.scheduler.kv.pool.num_used == 0, f"{replica.name} still holds KV blocks"
