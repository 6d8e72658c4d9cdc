"""From the engine thread to the event loop: one wake-up a step, merged when the reader lags, nothing lost."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillm.core.timeline import Timeline
from minillm.frontend.async_engine import OutputCollector, OutputDispatcher
from minillm.frontend.outputs import Completion, RequestOutput


def output(request_id: str, texts: list[str]) -> RequestOutput:
    """What the engine hands out when the last of `texts` is new."""
    new = Completion("".join(texts), [0] * len(texts), None, None, Timeline(0.0), texts[-1], 1)
    return RequestOutput(request_id, None, [1], [new])


class CountingLoop:
    def __init__(self) -> None:
        self.calls: list = []
        self.closed = False

    def call_soon_threadsafe(self, callback) -> None:
        if self.closed:
            raise RuntimeError("Event loop is closed")
        self.calls.append(callback)


@given(steps=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_a_reader_gets_all_that_is_new_once_whether_it_takes_it_at_once_or_looks_later(steps: list[tuple[bool, bool]]):
    async def main() -> None:
        collector, seen = OutputCollector(), []

        async def read() -> None:
            while True:
                seen.extend(await collector.get(lambda news: takes and not seen.append(news)))

        reader = asyncio.create_task(read())
        for length, (takes, looks) in enumerate([*steps, (False, True)], 1):  # noqa: B007
            collector.put(output("a", [f"<{i}>" for i in range(length)]))
            if looks:
                await asyncio.sleep(0)
        assert "".join(news.completions[0].new_text for news in seen) == seen[-1].text
        assert sum(news.completions[0].num_new_tokens for news in seen) == length and not reader.done()

    asyncio.run(main())


def test_a_reader_that_lags_holds_up_one_output_for_each_request():
    async def main() -> None:
        collector = OutputCollector()
        for length in range(1, 100):
            for request_id in "ab":
                collector.put(output(request_id, ["x"] * length))
        assert [news.completions[0].num_new_tokens for news in await collector.get()] == [99, 99]
        collector.put(ValueError("no more"))
        with pytest.raises(ValueError, match="no more"):
            await collector.get()

    asyncio.run(main())


def test_one_wake_up_for_all_streams_of_a_step():
    loop, collectors = CountingLoop(), [OutputCollector() for _ in range(64)]
    dispatcher = OutputDispatcher(loop)
    for step in range(1, 3):
        for collector in collectors:
            dispatcher.post(collector, output("a", ["x"] * step))
        assert len(loop.calls) == step
        loop.calls[-1]()
    assert all(collector._outputs["a"].completions[0].num_new_tokens == 2 for collector in collectors)


def test_a_loop_that_is_closed_is_said_every_time():
    loop = CountingLoop()
    loop.closed = True
    dispatcher = OutputDispatcher(loop)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            dispatcher.post(OutputCollector(), output("a", ["x"]))
