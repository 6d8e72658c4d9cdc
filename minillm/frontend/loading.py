"""The parts of an engine that compute: weights, the runner on them, and what drafts."""

from minillm.core.batch import Runner, ScheduledBatch, ScheduledRequest
from minillm.core.block_pool import blocks_for
from minillm.core.params import SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import Clock, Timeline
from minillm.model.loader import LoadedModel, load_model
from minillm.policies.config import EngineConfig
from minillm.runner.parallel_runner import ParallelRunner
from minillm.runner.torch_runner import TorchRunner
from minillm.speculation.base import Proposer
from minillm.speculation.make import load_drafter, make_proposer, marginal_row_cost, memory_claim


def load_parts(
    config: EngineConfig, model: LoadedModel | None, runner: Runner | None, proposer: Proposer | None, clock: Clock
) -> tuple[EngineConfig, LoadedModel | None, Runner, Proposer | None, float]:
    """What an Engine was not given: arguments as its own. Returns the configuration with the device's limits, model,
    runner, proposer, and what one more row adds to the cost of a step (marginal_row_cost).

    Raises:
        ConfigError: the configuration does not fit the model or the memory.
        ModelError: a model cannot be loaded.
    """
    is_cold = model is None
    if runner is None and config.tensor_parallel_size > 1:  # each rank loads its own part, whatever is loaded already
        runner = rank_0 = ParallelRunner(config, clock)
        config, model = config.for_device(rank_0.device.type), rank_0.model
    if runner is None:
        model = model or load_model(config)
        config = config.for_device(model.device.type)
    # Before the KV pool takes the memory that is left.
    drafter = load_drafter(config, model) if proposer is None else None
    if runner is None:
        assert model is not None
        runner = TorchRunner(model, config, clock, claim=memory_claim(config, drafter, model))
        if is_cold:
            warm_up(runner)
    if proposer is None:
        proposer = make_proposer(config.replace(block_size=runner.block_size), drafter, runner, clock)
    return config, model, runner, proposer, marginal_row_cost(runner)


def warm_up(runner: Runner) -> None:
    """A warm-up prompt and decode: threads are started, memory is mapped and kernels are compiled before a request
    waits for them. What it leaves in the cache belongs to no request, and is overwritten."""
    length = min(128, runner.num_kv_blocks * runner.block_size)
    request = Request("warm-up", [0] * length, SamplingParams(temperature=0), Timeline(0.0))
    block_ids = range(blocks_for(length, runner.block_size))
    for start in (0, length - 1):
        part = ScheduledRequest(request, start, length - start, block_ids, samples=True)
        runner.launch(ScheduledBatch(0, (part,))).wait()
