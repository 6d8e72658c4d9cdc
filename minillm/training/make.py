"""From a model to a draft head in a folder: sample conversations, train, judge, save."""

import datetime
import shlex
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import minillm
from minillm.core.errors import TrainingError
from minillm.frontend.engine import Engine
from minillm.model.loader import LoadedModel, load_model
from minillm.policies.config import EngineConfig
from minillm.speculation.head import DraftHead
from minillm.speculation.head_file import fill_head, new_head, read_head, save_head
from minillm.training.conversations import SHARD_SIZE, Conversation, load_conversations, sample_conversations
from minillm.training.linear_start import start_linear
from minillm.training.train import Training, TrainingSettings

SAMPLED_AT_ONCE = 64
"""Conversations: throughput is what counts here."""
ONE_IN, MOST_HELD_OUT = 10, 128
GREEDY = 0.9
"""An answer is taken for a greedy one if such a share of its tokens are the model's likeliest, as far as the head can
name them."""


def make_head(
    config: EngineConfig, out: Path, num_conversations: int, settings: TrainingSettings, *, progress: bool = True
) -> dict[str, Any]:
    """Write a draft head for `config.model` to `out`. Returns what its head.json says of it.

    Conversations and the training's state are kept in the folder, so calling it again goes on where it stopped.

    Args:
        num_conversations: conversations to learn from and judge by; one in ten is held out.
    Raises:
        ModelError: the model cannot be loaded.
        ConfigError, CorruptCheckpointError: the head to go on from is none of this model, or cannot be read.
        TrainingError: it has no chat template, or the folder is of a run with other settings.
    """
    model = load_model(config)
    engine = Engine(config.replace(max_num_seqs=SAMPLED_AT_ONCE), model)
    shards = range(-(-num_conversations // SHARD_SIZE))
    files = sample_conversations(engine, out / "conversations", shards, progress=progress)
    conversations = [conversation for file in files for conversation in load_conversations(file)][:num_conversations]
    return train_head(model, conversations, settings, out, progress=progress)


def train_head(
    model: LoadedModel,
    conversations: Sequence[Conversation],
    settings: TrainingSettings,
    out: Path,
    *,
    progress: bool = True,
) -> dict[str, Any]:
    """Train on these conversations, but for some, which judge. See `make_head`."""
    start = time.monotonic()
    if len(conversations) < ONE_IN:
        raise TrainingError(f"{len(conversations)} conversations are too few: it takes ten, to have one to judge by")
    held_out, seen = split(conversations)
    token_ids, coverage = most_frequent(seen, settings.vocabulary, model.model_config.vocab_size)
    head = new_head(model, token_ids, settings.seed, model.device)
    before = origin = None
    if settings.start_from is None:
        start_linear(head, seen)
    else:
        before, tensors, _ = read_head(settings.start_from, model)
        fill_head(head, tensors, Path(settings.start_from))
        origin = fingerprint(tensors)
    greedy = [conversation for conversation in held_out if is_greedy(head, conversation)]
    training = Training(head, seen, greedy, settings, out / "training.pt", origin)
    training.run(progress=progress)
    agreement = training.judge()
    facts = {
        "model": model.name,
        "command": shlex.join(["minillm", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "versions": {"minillm": minillm.__version__, "torch": torch.__version__},
        "conversations": len(seen),
        "went_on_from": before,
        "tokens": sum(len(conversation.token_ids) for conversation in seen),
        "answer_tokens": sum(len(conversation.token_ids) - conversation.answer_start for conversation in seen),
        "vocabulary": {"tokens": len(token_ids), "share_of_answers": round(coverage, 4)},
        "training": {
            **training.describe_run(),
            "steps": training.num_steps,
            "hours": round((time.monotonic() - start) / 3600, 2),
        },
        "held_out": {
            "greedy_conversations": len(greedy),
            "rows": agreement.rows,
            "acceptance_by_position": [round(share, 4) for share in agreement.by_position],
            "emitted_per_verify": [round(emitted, 3) for emitted in agreement.emitted_per_verify],
        },
    }
    return save_head(head, out, facts)


def split(conversations: Sequence[Conversation]) -> tuple[list[Conversation], list[Conversation]]:
    """One conversation in ten to judge by, up to MOST_HELD_OUT, and the others. However many more are sampled, it is
    the same ones: a head that goes on with more of them is judged by none that the head before it learned from. (Each
    everyday question comes once in some 6,000. Beyond that, other answers to the judging ones are learned.)"""
    judges = range(0, min(len(conversations), ONE_IN * MOST_HELD_OUT), ONE_IN)
    return [conversations[i] for i in judges], [
        conversation for i, conversation in enumerate(conversations) if i not in judges
    ]


def fingerprint(tensors: dict[str, Tensor]) -> str:
    """Eight letters that are others when a weight is another."""
    parts = (tensors[name].contiguous().view(torch.uint8).numpy().tobytes() for name in sorted(tensors))
    return f"{zlib.crc32(b''.join(parts)):08x}"


def most_frequent(conversations: Sequence[Conversation], num_tokens: int, vocab_size: int) -> tuple[Tensor, float]:
    """The most frequent tokens [N], the most frequent first, and the share of the answers they make.

    Of tokens seen equally often, or never, those with the lower ids are taken: the vocabulary was built by merging what
    is most frequent, so low ids are frequent ones.
    """
    counts = torch.bincount(torch.cat([conversation.token_ids for conversation in conversations]), minlength=vocab_size)
    chosen = counts.argsort(descending=True, stable=True)[:num_tokens]
    answers = torch.cat([conversation.token_ids[conversation.answer_start :] for conversation in conversations])
    return chosen, torch.isin(answers, chosen).float().mean().item()


@torch.no_grad()
def is_greedy(head: DraftHead, conversation: Conversation) -> bool:
    """Whether the answer is what the model finds likeliest, token by token."""
    device = head.token_ids.device
    before = conversation.hidden[conversation.answer_start - 1 :].to(device).float()
    likeliest = head.token_ids[head.output(before).argmax(dim=-1)]
    said = conversation.token_ids[conversation.answer_start :].to(device)
    nameable = torch.isin(said, head.token_ids)
    return bool((likeliest == said).sum() >= GREEDY * nameable.sum())
