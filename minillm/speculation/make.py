"""The proposer that a configuration asks for."""

from minillm.clock import Clock
from minillm.config import EngineConfig
from minillm.errors import ConfigError
from minillm.models.loader import LoadedModel, load_model
from minillm.runners.base import Runner
from minillm.runners.torch_runner import TorchRunner
from minillm.speculation.base import NoProposer, Proposer
from minillm.speculation.draft_head import DraftHeadProposer
from minillm.speculation.draft_model import DraftModelProposer
from minillm.speculation.head_file import load_head
from minillm.speculation.ngram import NgramProposer
from minillm.speculation.synthetic import SyntheticProposer


def make_proposer(config: EngineConfig, model: LoadedModel | None, runner: Runner, clock: Clock) -> Proposer:
    """For `config.speculative`; one that proposes nothing if there is none.

    Args:
        model: whose output is to be drafted; None where there is none, or it is simulated.
    Raises:
        ConfigError: the method needs a model, or another one, or more memory.
        ModelError: the draft model or the draft head cannot be loaded.
    """
    wanted = config.speculative
    if wanted is None:
        return NoProposer()
    if wanted.method == "ngram":
        return NgramProposer(wanted.ngram_min, wanted.ngram_max)
    if model is None:
        raise ConfigError(f"speculative.method={wanted.method!r} needs a model: use ngram, or pass a proposer")
    # As many blocks as the model has, each of them smaller if the drafting model is.
    fields = {"num_kv_blocks": runner.num_kv_blocks, "kv_cache_memory_gb": None, "preemption": "recompute"}
    fields["compile"] = False  # programs of a second model would push out the first one's
    own = config.replace(speculative=None, **fields)
    options = {
        "enable_prefix_caching": config.enable_prefix_caching,
        "max_num_tokens": config.max_num_batched_tokens,
    }
    if wanted.method == "synthetic":
        return SyntheticProposer(TorchRunner(model, own, clock), wanted.acceptance_rate, **options)
    if wanted.method == "draft_model":
        own = own.replace(model=wanted.model)
        small = load_model(own)
        check_vocabulary(small, model)
        return DraftModelProposer(TorchRunner(small, own, clock), **options)
    return DraftHeadProposer(load_head(wanted.model or config.model, model), runner, config.max_num_seqs)


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
