"""A process whose start is measured: `python -m course.measure.start_up_child STARTED FIELDS`, the moment in seconds
since 1970 and the engine's configuration as JSON. It prints what it took, as JSON."""

import json
import sys
import time
from typing import Any

PROMPT, MANY, SHORT, TOKENS = 128, 12, 16, 8
"""Tokens of the first prompt; then the requests after it, tokens of their prompts, and of the shortest answer."""


def main() -> None:
    """Start, answer a prompt, then some requests of several lengths."""
    started, fields = float(sys.argv[1]), json.loads(sys.argv[2])
    from minillm import Engine, EngineConfig, SamplingParams
    from minillm.bench.report import describe_engine
    from minillm.bench.target import finish, random_prompts

    imported = time.time()
    engine = Engine(EngineConfig(**fields))
    made, at_start = time.time(), num_graphs(engine)
    assert engine.vocab_size is not None
    first, *others = random_prompts(engine.vocab_size, [min(PROMPT, engine.context_limit // 2), *[SHORT] * MANY])
    engine.add_request(first, SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True), stream=False)
    finish(engine)
    answered, before = time.time(), engine.scheduler.num_steps
    for number, prompt in enumerate(others):  # they end one after the other, so batches of all sizes are met
        params = SamplingParams(temperature=0.0, max_tokens=TOKENS + number, ignore_eos=True)
        engine.add_request(prompt, params, stream=False)
    finish(engine)
    later = [now - then for now, then in zip(num_graphs(engine), at_start)]
    measured = {
        "import_s": imported - started,
        "engine_s": made - imported,
        "first_token_s": answered - made,
        "total_s": answered - started,
        "graphs_at_start": at_start,
        "graphs_later": later,
        "slowest_step_s": max(step.end - step.start for step in engine.steps if step.step_id >= before),
    }
    described = describe_engine(engine)
    device = engine.loaded_model.device.type
    print(json.dumps({"measured": measured, "engine": described, "dtype": described["dtype"], "device": device}))


def num_graphs(engine: Any) -> list[int]:
    """Sizes that are captured: of decodes, and of steps in pieces."""
    runner = engine.torch_runner
    return [len(captured.graphs) if captured else 0 for captured in (runner.fast_decode, runner.fast_pieces)]


if __name__ == "__main__":
    main()
