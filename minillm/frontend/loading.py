"""The parts of an engine that compute: weights, the runner on them, and what drafts."""

from minillm.core.batch import Runner, ScheduledBatch, ScheduledRequest
from minillm.core.block_pool import blocks_for
from minillm.core.params import SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import Clock, Timeline
from minillm.frontend.parts import EngineParts
from minillm.model.loader import LoadedModel, load_model
from minillm.policies.config import EngineConfig
from minillm.runner.kept_runners import KeptRunners
from minillm.runner.parallel_runner import ParallelRunner
from minillm.runner.torch_runner import TorchRunner
from minillm.speculation.base import Proposer
from minillm.speculation.head import AnyHead
from minillm.speculation.make import load_drafter, make_proposer, marginal_row_cost, memory_claim


def load_parts(
    config: EngineConfig,
    model: LoadedModel | None,
    proposer: Proposer | None,
    clock: Clock,
    runners: KeptRunners | None = None,
) -> EngineParts:
    """Load the weights, and make a runner on them and what drafts. What is given already is taken as it is.

    Args:
        runners: of an engine that has ended, to go on with.
    Raises:
        ConfigError: the configuration does not fit the model or the memory.
        ModelError: a model cannot be loaded.
    """
    is_cold = model is None
    rank_0 = None
    if config.tensor_parallel_size > 1:  # each rank loads its own part, whatever is loaded already
        rank_0 = ParallelRunner(config, clock)
        model = rank_0.model
    elif model is None:
        model = load_model(config)
    config = config.for_device(model.device.type)
    # Before the KV pool takes the memory that is left.
    runners = runners or KeptRunners()
    drafter = load_drafter(config, model, runners) if proposer is None else None
    depths = drafter.depths if isinstance(drafter, AnyHead) else ()
    runner = rank_0 or runners.take("model", model, config, clock, memory_claim(config, drafter, model), depths)
    if is_cold and rank_0 is None:
        warm_up(runner, config.max_model_len or model.model_config.max_position_embeddings)
    if proposer is None:
        proposer = make_proposer(config.replace(block_size=runner.block_size), drafter, runner, clock, runners)
    runners.drop("model", "drafts")
    return EngineParts(config, model, runner, proposer, marginal_row_cost(runner))


def load_proposer(
    config: EngineConfig, model: LoadedModel | None, runner: Runner, clock: Clock
) -> tuple[Proposer, float]:
    """What drafts for a runner that is there already, and what one more row costs on it. Raises as load_parts."""
    own, runners = config.replace(block_size=runner.block_size), KeptRunners()
    return make_proposer(own, load_drafter(config, model, runners), runner, clock, runners), marginal_row_cost(runner)


def warm_up(runner: TorchRunner, max_model_len: int) -> None:
    """A few steps for no request: threads are started, memory is mapped and kernels are compiled before a request
    waits for them. What it leaves in the cache belongs to no request, and is overwritten."""
    longest = min(max_model_len, runner.num_kv_blocks * runner.block_size)
    for context_len, num_tokens in runner.attention.warm_up_steps:
        length = min(context_len, longest)
        block_ids = range(blocks_for(length, runner.block_size))
        parts: list[ScheduledRequest] = []
        for new in (1, min(num_tokens, length)):  # beside a decode: alone, that may be replayed as a graph
            request = Request(f"warm-up-{len(parts)}", [0] * length, SamplingParams(temperature=0), Timeline(0.0))
            parts.append(ScheduledRequest(request, length - new, new, block_ids, samples=True))
        runner.launch(ScheduledBatch(0, tuple(parts))).wait()
