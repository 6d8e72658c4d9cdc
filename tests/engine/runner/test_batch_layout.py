"""A step laid out with the block tables of the step before is what it would be without, whatever happened."""

from collections import defaultdict

import numpy as np
from core.counting import CountingRunner, CountingStep
from fake_runner import GuessingProposer
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm import Engine, EngineConfig, SamplingParams
from minillm.core.batch import ScheduledBatch
from minillm.core.errors import RequestError
from minillm.core.timeline import VirtualClock
from minillm.runner.batch_layout import BlockTables, lay_out

FIELDS = {
    "max_num_seqs": st.integers(1, 5),
    "max_num_batched_tokens": st.integers(5, 40),
    "preemption": st.sampled_from(["recompute", "swap"]),
    "sliding_window": st.sampled_from([None, 3, 9]),
    "speculative": st.sampled_from([None, {"method": "ngram", "k": 6, "min_output_tokens": 1}]),
}


# Prompts of few different tokens, so that many share a prefix. A number aborts the request of that number.
requests = st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=30), st.integers(1, 12))
events = st.lists(st.one_of(requests, st.just("step"), st.integers(0, 20)), min_size=1, max_size=40)


class LaidOutTwice(CountingRunner):
    def __init__(self, num_blocks: int) -> None:
        super().__init__(VirtualClock(), num_blocks, num_host_blocks=12)
        self.tables, self.alike = BlockTables(4, null_block=20), []

    def launch(self, batch: ScheduledBatch) -> CountingStep:
        pending = defaultdict(int)
        kept, new = (lay_out(batch.requests, tables, pending).arrays for tables in (self.tables, BlockTables(4, 20)))
        self.alike.append(all(map(np.array_equal, kept, new)))  # the engine would take an assertion for a failed step
        return super().launch(batch)


@settings(max_examples=150)
@given(fields=st.fixed_dictionaries(FIELDS), num_blocks=st.integers(6, 20), events=events)
def test_no_row_of_a_kept_table_is_stale(fields, num_blocks, events):
    """Preemptions, swaps, aborts, shared prefixes, windows that move on, drafts that are rejected, pending tokens."""
    runner = LaidOutTwice(num_blocks)
    config = EngineConfig(**fields, block_size=4, max_model_len=40)
    engine = Engine.on_runner(config, runner, runner.clock, proposer=GuessingProposer())
    for number, event in enumerate(events):
        if isinstance(event, int):
            engine.abort(f"r{event}")
        elif event != "step":
            try:
                engine.add_request(event[0], SamplingParams(max_tokens=2 * event[1]), request_id=f"r{number}")
            except RequestError:
                continue  # longer than the pool
        engine.step()
    while engine.has_unfinished:
        engine.step()
    assert all(runner.alike) and len(runner.alike) == len(engine.steps)


def test_blocks_of_rejected_drafts_leave_the_table():
    """Where a neighbour's is longer, a row doesn't end with its own blocks."""
    tables = BlockTables(4, null_block=20)
    lists = [[5, 6], [7, 8]]
    tables.update(lists, np.array([2, 4]), np.array([5, 5]))
    del lists[0][1:]
    assert tables.update(lists, np.array([3, 5]), np.array([4, 6])).tolist() == [[5, 20], [7, 8]]
