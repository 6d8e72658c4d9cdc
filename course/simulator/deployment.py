"""One replica: a model on some accelerators, served by the engine as configured; simulated."""

import functools
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from course.simulator.cost.hardware import Hardware
from course.simulator.cost.lora import NO_LORA, Lora
from course.simulator.cost.models import PricedModel, find_model
from course.simulator.cost.placement import Placement, check_fits, kv_blocks_that_fit
from course.simulator.cost.profile import Profile, find_profile
from course.simulator.cost.roofline import Constants, StepTime, StepTimeModel, StepWork, work_of
from course.simulator.errors import PricingError
from course.simulator.fast_forward import FastForwardCore
from course.simulator.simulated_runner import NO_DRAFTING, MadeUpProposer, SimulatedDrafting, SimulatedRunner, StepWatch
from course.simulator.speculation import SimulatedConfig, SimulatedSpeculation
from minillm.core.batch import ScheduledBatch
from minillm.core.brief import brief
from minillm.core.engine import EngineCore
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.kernels.attention.window import Window
from minillm.policies.config import EngineConfig

BLOCK_SIZE = 16
"""Tokens per KV block, unless the configuration says otherwise."""
VLLM_DEFAULTS = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
"""What `vllm serve` uses unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Everything that decides how long a simulated step takes, and which requests are in it.

    `config` is the engine's own; of its fields those about techniques, budgets and KV memory count.
    """

    model: PricedModel
    profile: Profile
    placement: Placement = field(default_factory=Placement)
    config: EngineConfig = field(default_factory=lambda: EngineConfig(**VLLM_DEFAULTS))
    null_block: bool = False
    """One block of the pool is never given to a request. vLLM's null block is one of those that it reports; the one of
    our own engine comes on top."""
    others_load: float = 1.0
    """With data-parallel attention this is one rank of several, which take every step together: what each of the
    others does, in terms of this one. 1 = all are as busy."""
    separate_prompts: bool = False
    """Prompts are computed in steps of their own, during which answers wait, as in SGLang. The scheduler still plans
    one step with both, and it takes as long as the two."""

    __repr__ = brief

    def __post_init__(self) -> None:
        config, placement = self.config, self.placement
        for name, wanted, priced in (
            ("quantization", config.quantization or placement.weight_dtype, placement.weight_dtype),
            ("kv_cache_dtype", kv_dtype_of(config) or placement.kv_dtype, placement.kv_dtype),
        ):
            if wanted != priced:
                raise PricingError(f"{name} is {wanted}, but what is to be priced is in {priced}: say one of them")
        if config.tensor_parallel_size not in (1, placement.tp):
            raise PricingError(f"tp is {placement.tp} and tensor_parallel_size is another: leave that one out")
        if config.quantization == "int4" and config.int4_group_size != 32:
            raise PricingError("int4 is priced in groups of 32: leave int4_group_size out")

    @classmethod
    def of(
        cls,
        model: str | PricedModel,
        profile: str | Profile,
        *,
        tp: int = 1,
        pp: int = 1,
        weight_dtype: str | None = None,
        kv_dtype: str | None = None,
        kv_heads: int | None = None,
        expert_parallel: bool = False,
        expert_skew: float = 1.0,
        null_block: bool = False,
        lora: Lora = NO_LORA,
        dp: int = 1,
        expert_groups: int | None = None,
        others_load: float = 1.0,
        separate_prompts: bool | None = None,
        **engine_fields: object,
    ) -> "Deployment":
        """By names: `Deployment.of("llama-3-70b", "h100-sxm", tp=4, max_num_seqs=128)`.

        Args:
            model: see `find_model`; or its sizes.
            profile: a profile, its file, or the name of a hardware.
            weight_dtype: None = as `quantization` says, else bfloat16.
            kv_dtype: None = as `kv_cache_dtype` says, else as the weights, or bfloat16 where those are quantized.
            expert_parallel: see Placement, as for `expert_skew`.
            null_block: see the field.
            lora: adapters beside the weights.
            dp, expert_groups: see Placement.
            others_load: see the field.
            separate_prompts: see the field; None = as the profile's engine does.
            engine_fields: fields of EngineConfig; `speculative` takes those of SimulatedSpeculation.
        Raises:
            PricingError: a dtype is unknown, or said twice and not the same; or the model can't be placed so.
        """
        config = SimulatedConfig(**{**VLLM_DEFAULTS, **engine_fields})
        weight_dtype = weight_dtype or config.quantization or "bfloat16"
        plain = weight_dtype if weight_dtype in ("float32", "float16") else "bfloat16"
        kv_dtype = kv_dtype or kv_dtype_of(config) or plain
        if isinstance(profile, str):
            profile = find_profile(profile)
        cost = find_model(model, kv_heads) if isinstance(model, str) else model
        profile = profile.for_model(cost).for_weights(weight_dtype).for_kv(kv_dtype)
        placement = Placement(
            tp,
            weight_dtype,
            kv_dtype,
            pp,
            lora,
            expert_parallel=expert_parallel,
            expert_groups=expert_groups,
            dp=dp,
            expert_skew=expert_skew,
        )
        placement.check(cost)
        separate = profile.separate_prompts if separate_prompts is None else separate_prompts
        return cls(cost, profile, placement, config, null_block, others_load, separate)

    def with_constants(self, constants: Constants) -> "Deployment":
        return replace(self, profile=self.profile.replace(constants=constants))

    def without_prefix_lookups(self) -> "Deployment":
        """For prompts of which no two share a token: hashing them takes time, and only a preempted
        request would find anything: itself."""
        return replace(self, config=self.config.replace(enable_prefix_caching=False))

    @property
    def window(self) -> Window:
        """What a token sees."""
        return Window(self.config.sliding_window, self.config.attention_sinks)

    @property
    def block_size(self) -> int:
        return self.config.block_size or BLOCK_SIZE

    @property
    def num_kv_blocks(self) -> int:
        """That requests can have: as configured, else what the memory holds.

        Raises:
            DoesNotFitError: the weights alone, or with one block, are too large.
            PricingError: the pool holds no block.
        """
        blocks = self._pool_blocks() - self.null_block
        if blocks < 1:
            raise PricingError("the KV pool has no block beside the null block: raise num_kv_blocks")
        return blocks

    def _pool_blocks(self) -> int:
        hardware = self.profile.hardware
        if self.config.kv_cache_memory_gb is not None:
            blocks = int(self.config.kv_cache_memory_gb * 1e9 // self.block_bytes)
        elif self.config.num_kv_blocks is not None:
            blocks = self.config.num_kv_blocks
        else:
            most = self.config.max_num_seqs
            return kv_blocks_that_fit(self.model, hardware, self.placement, self.block_size, most)
        if blocks < 1:
            raise PricingError(f"kv_cache_memory_gb holds no block of {self.block_bytes / 1e6:.2f} MB: raise it")
        check_fits(self.model, hardware, self.placement, blocks * self.block_bytes)
        return blocks

    @property
    def block_bytes(self) -> float:
        """Bytes of one KV block, on each accelerator."""
        return self.placement.kv_bytes_per_token(self.model) * self.block_size

    def step_time(self, drafter: PricedModel | None = None, hardware: Hardware | None = None) -> StepTimeModel:
        """Prices of steps; of a drafter, which has no adapters, or on other hardware in this one's place."""
        placement = self.placement if drafter is None else replace(self.placement, lora=NO_LORA)
        return StepTimeModel(
            drafter or self.model, hardware or self.profile.hardware, placement, self.profile.constants
        )

    def adjusted(self, work: StepWork) -> StepWork:
        """A step's work, with what isn't a matter of this rank's tokens alone: layers may not see the whole context,
        and other ranks bring tokens of their own.

        Prices are of all accelerators together. Experts compute the tokens of all ranks. Attention with its projections
        takes as long as if every rank had as much to do as this one: the others have their own accelerators.
        """
        model, dp = self.model, self.placement.dp
        if dp == 1 and model.sees_everything:
            return work
        kv_dtype = self.placement.kv_dtype
        prompt_context = model.seen(work.prompt_context, work.prefills, kv_dtype)
        context = model.seen(work.context - work.prompt_context, work.requests - work.prefills, kv_dtype)
        prompt_pairs = model.scored(work.prompt_pairs, work.prompt_tokens) * dp
        pairs = model.scored(work.pairs - work.prompt_pairs, work.tokens - work.prompt_tokens) * dp
        ranks = 1.0
        if dp > 1:
            attention = model.attention_params / model.layer_params
            ranks = dp * attention + (1 + (dp - 1) * self.others_load) * (1 - attention)
        return replace(
            work,
            tokens=work.tokens * ranks,
            logits=work.logits * ranks,
            pairs=prompt_pairs + pairs,
            prompt_pairs=prompt_pairs,
            context=prompt_context + context,
            prompt_context=prompt_context,
        )

    def drafting(self) -> SimulatedDrafting:
        """What speculation is like here, with a new random number generator: drafts are looked up for nothing, written
        by a draft model at the price of its shape, or by anything else at `draft_cost` of the model's own price.

        Raises:
            UnknownModelError: there is no such draft model.
            PricingError: there is a `draft_cost`, and nothing that it could be the cost of.
        """
        if self.config.speculative is None:
            return NO_DRAFTING
        config = SimulatedSpeculation.of(self.config.speculative)
        if "draft_cost" in config.model_fields_set and config.method in ("ngram", "draft_model"):
            price = "nothing" if config.method == "ngram" else "what its shape does"
            raise PricingError(f"with method={config.method} a draft costs {price}: leave draft_cost out")
        share, drafter = config.draft_cost, self.model
        if config.method == "ngram":
            share = 0.0
        elif config.method == "draft_model":
            assert config.model is not None, "checked with the method"
            share, drafter = 1.0, find_model(config.model)
        step_time = self.step_time(drafter)

        def seconds(batch: ScheduledBatch) -> float:
            longest = max(scheduled.num_drafts for scheduled in batch.requests)
            return share * sum(step_time.price(draft_work(batch, place, self.window)).total for place in range(longest))

        return SimulatedDrafting(seconds, config.acceptance_rate, random.Random(config.seed))

    def engine(self, clock: VirtualClock, watch: StepWatch | None = None) -> Engine:
        """The unchanged engine, on a runner that only prices steps.

        Args:
            watch: sees every step as it is launched; its price is a StepTime.
        """
        return self._engine(EngineCore, clock, watch)

    def fast_engine(self, clock: VirtualClock, watch: StepWatch | None = None, *, tells_stalls: bool = True) -> Engine:
        """The same results in a fraction of the time, but no step records, and timelines that are brought up to date
        only now and then while a request runs; see fast_forward.py.

        With speculation it is the plain engine: it isn't known beforehand how many tokens a step will yield. Likewise
        where a batch is closed, the order depends on the tokens so far, all blocks are held from the start, or blocks
        are given back on the way.

        Args:
            watch: sees every step as it is launched.
            tells_stalls: see FastForwardCore.
        """
        config = self.config
        holds_what_it_needs = config.kv_reservation == "on_demand" and config.sliding_window is None
        reads_tokens = config.speculative is not None or config.scheduling_order == "fair"
        is_plain = not reads_tokens and config.batching != "static" and holds_what_it_needs
        fast = functools.partial(FastForwardCore, tells_stalls=tells_stalls)
        return self._engine(fast if is_plain else EngineCore, clock, watch)

    def _engine(self, core: Callable[..., EngineCore], clock: VirtualClock, watch: StepWatch | None) -> Engine:
        step_time, visible = self.step_time(), self.window

        def price(batch: ScheduledBatch) -> StepTime:
            prompts = tuple(s for s in batch.requests if s.is_prefill) if self.separate_prompts else ()
            rest = tuple(s for s in batch.requests if not s.is_prefill) if prompts else batch.requests
            work = work_of(rest, visible)
            if isinstance(engine.core, FastForwardCore):
                engine.core.lot.add_work(work)
            if not prompts:
                return step_time.price(self.adjusted(work))
            prompt_step = step_time.price(self.adjusted(work_of(prompts, visible)))
            return prompt_step + step_time.price(self.adjusted(work)) if work.tokens else prompt_step

        def decode_seconds(count: int, contexts: Iterable[int]) -> list[float]:
            if self.placement.dp == 1 and self.model.sees_everything:
                return step_time.decode_seconds(count, contexts)
            steps = (StepWork(count, count, count, context, context, 0) for context in contexts)
            return [step_time.price(self.adjusted(step)).total for step in steps]

        host_blocks = int(self.config.swap_space_gb * 1e9 / self.placement.accelerators // self.block_bytes)
        runner = SimulatedRunner(
            price,
            clock,
            decode_seconds=decode_seconds if watch is None else None,
            num_kv_blocks=self.num_kv_blocks,
            num_host_blocks=host_blocks if self.config.preemption == "swap" else 0,
            block_size=self.block_size,
            swap_s_per_block=self.block_bytes / self.profile.hardware.host_link,
            kv_bytes_per_token=self.model.kv_bytes_per_token(self.placement.kv_dtype),
            vocab_size=self.model.vocab_size,
            runs_beside_python=self.profile.hardware.is_gpu,
            watch=watch,
            drafting=self.drafting(),
        )
        window = self.config.max_model_len or self.model.max_context
        config = self.config.replace(max_model_len=window, block_size=self.block_size)
        engine = Engine.on_runner(config, runner, clock, proposer=MadeUpProposer(), make_core=core)
        return engine


def kv_dtype_of(config: EngineConfig) -> str | None:
    """The dtype of a quantized KV cache; None = it isn't quantized."""
    return None if config.kv_cache_dtype == "auto" else config.kv_cache_dtype


def draft_work(batch: ScheduledBatch, place: int, window: Window) -> StepWork:
    """Drafting the token at a place (from 0) of every draft that is so long."""
    most = math.inf if window.size is None else window.size + window.sinks
    contexts = [min(s.start + 1 + place, most) for s in batch.requests if s.num_drafts > place]
    return StepWork(len(contexts), len(contexts), len(contexts), sum(contexts), sum(contexts), 0)
