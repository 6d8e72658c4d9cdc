"""The proposer that a configuration asks for."""

from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from minillm.core.batch import Runner
from minillm.core.errors import ConfigError
from minillm.core.timeline import Clock
from minillm.kernels.attention.cache import cache_dtype
from minillm.kernels.quantization import dtype_name
from minillm.model.arithmetic import kv_bytes_per_token
from minillm.model.loader import LoadedModel, load_model
from minillm.policies.config import EngineConfig
from minillm.runner.kept_runners import KeptRunners
from minillm.runner.memory_budget import NO_CLAIM, MemoryClaim
from minillm.runner.torch_runner import TorchRunner
from minillm.speculation.base import Proposer
from minillm.speculation.draft_head import CONTEXT, DraftHeadProposer
from minillm.speculation.draft_length import CHEAP_ROW, COSTLY_ROW, GPU_ROW
from minillm.speculation.draft_model import DraftModelProposer
from minillm.speculation.eagle3_file import holds_eagle3, load_eagle3
from minillm.speculation.head import AnyHead
from minillm.speculation.head_file import load_head
from minillm.speculation.ngram import NgramProposer
from minillm.strict_model import default_of

Drafter = LoadedModel | AnyHead | None
"""The weights that draft; None where none are needed."""


@runtime_checkable
class BringsProposer(Protocol):
    """A SpeculativeConfig of one's own that says what drafts, with the weights of the model itself."""

    def make_proposer(self, runner: TorchRunner, config: EngineConfig) -> Proposer:
        """What drafts.

        Args:
            runner: runs the model, over a KV pool of its own.
            config: the engine's.
        """


def load_drafter(config: EngineConfig, model: LoadedModel | None, runners: KeptRunners) -> Drafter:
    """What `config.speculative` drafts with. To be loaded before a KV pool takes the memory that is left.

    Args:
        model: whose output is to be drafted; None where there is none, or it is simulated.
        runners: one that drafted before for this very model, loaded as `config` says, is let go of if other weights are
            to be loaded: into the memory that it leaves.
    Raises:
        ConfigError: the method needs a model, or another one.
        ModelError: the draft model or the draft head cannot be loaded.
    """
    wanted = config.speculative
    if wanted is None or wanted.method == "ngram":
        return None
    if model is None:
        raise ConfigError(f"speculative.method={wanted.method!r} needs a model: use ngram, or pass a proposer")
    if isinstance(wanted, BringsProposer):
        return model
    kept = runners.drafting_model
    if wanted.method == "draft_model" and kept is not None and kept.name == wanted.model:
        return kept
    del kept
    runners.drop("drafts")
    if wanted.method == "draft_model":
        small = load_model(config.replace(model=wanted.model, speculative=None))
        check_vocabulary(small, model)
        return small
    if wanted.model is not None and holds_eagle3(folder := Path(wanted.model).expanduser()):
        return load_eagle3(folder, model)
    return load_head(wanted.model or config.model, model)


def memory_claim(config: EngineConfig, drafter: Drafter, model: LoadedModel | None) -> MemoryClaim:
    """What a drafter's own KV cache will take of the device's memory."""
    if isinstance(drafter, LoadedModel):
        dtype = cache_dtype(config.kv_cache_dtype, drafter.dtype)
        return MemoryClaim(bytes_per_token=kv_bytes_per_token(drafter.model_config, dtype_name(dtype)))
    if isinstance(drafter, AnyHead):
        assert model is not None
        row_bytes = 2 * drafter.config.num_kv_heads * drafter.config.head_dim * model.dtype.itemsize
        # The streams that a step shows, and once more side by side.
        shown = 2 * len(drafter.depths) * model.model_config.hidden_size * model.dtype.itemsize
        num_bytes = config.max_num_seqs * CONTEXT * row_bytes + config.max_num_batched_tokens * shown
        return MemoryClaim(num_bytes=num_bytes)
    return NO_CLAIM


def make_proposer(
    config: EngineConfig, drafter: Drafter, runner: Runner, clock: Clock, runners: KeptRunners
) -> Proposer:
    """The proposer for `config.speculative`; one that proposes nothing if there is none.

    Args:
        drafter: from `load_drafter`.
        runner: runs the model whose output is drafted.
        runners: where a drafting model gets its own.
    Raises:
        ConfigError: it needs more memory.
    """
    wanted = config.speculative
    if wanted is None:
        return Proposer()
    if wanted.method == "ngram":
        return NgramProposer(wanted.ngram_min, wanted.ngram_max)
    if isinstance(drafter, AnyHead):
        assert isinstance(runner, TorchRunner), "a draft head reads the hidden states of a model"
        return DraftHeadProposer(drafter, runner, min(config.max_num_seqs, runner.num_kv_blocks))
    assert drafter is not None
    # As many blocks as the model has, each of them smaller if the drafting model is.
    own_config = config.replace(
        speculative=None,
        num_kv_blocks=runner.num_kv_blocks,
        kv_cache_memory_gb=None,
        preemption="recompute",
        swap_space_gb=default_of(EngineConfig, "swap_space_gb"),
    )
    make = wanted.make_proposer if isinstance(wanted, BringsProposer) else DraftModelProposer
    return make(runners.take("drafts", drafter, own_config, clock), config)


def check_vocabulary(small: LoadedModel, model: LoadedModel) -> None:
    """Raise ConfigError unless a token id means the same to both."""
    sizes = [each.model_config.vocab_size for each in (small, model)]
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"the draft model {small.name!r} knows {sizes[0]} tokens and {model.name!r} {sizes[1]}: choose one with "
            "the same vocabulary"
        )
    if small.tokenizer and model.tokenizer and small.tokenizer.get_vocab() != model.tokenizer.get_vocab():
        raise ConfigError(
            f"the draft model {small.name!r} and {model.name!r} have different tokens: choose one with the same "
            "vocabulary"
        )


def marginal_row_cost(runner: Runner) -> float:
    """What one more row adds to the cost of a step with one, on the runner's device."""
    if not isinstance(runner, TorchRunner):
        return COSTLY_ROW
    if runner.device.type == "cuda":
        return GPU_ROW
    return CHEAP_ROW if torch.cpu._is_avx512_bf16_supported() else COSTLY_ROW
