"""Requests that arrive one after the other while others run, so that a step mixes prefills and decodes."""

from collections.abc import Callable

from integrity import check_engine

from minillm import Engine, SamplingParams
from minillm.frontend.outputs import RequestOutput


def serve_staggered(
    engine: Engine,
    prompts: list[list[int]],
    params: SamplingParams,
    *,
    last_alone: bool = False,
    check: Callable[[Engine], None] = check_engine,
) -> list[RequestOutput]:
    """Everyone's output; a new request arrives every third step.

    Args:
        last_alone: the last one arrives after all others have ended.
        check: called after each step.
    """
    waiting, outputs, step = list(enumerate(prompts)), {}, 0
    while waiting or engine.has_unfinished:
        must_wait = last_alone and len(waiting) == 1 and engine.has_unfinished
        if waiting and step % 3 == 0 and not must_wait:
            number, prompt = waiting.pop(0)
            engine.add_request(prompt, params, request_id=str(number), stream=False)
        outputs |= {output.request_id: output for output in engine.step()}
        check(engine)
        step += 1
    return [outputs[str(number)] for number in range(len(prompts))]
