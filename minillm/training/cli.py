"""`minillm train-draft`."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def train_draft(
    out: Annotated[Path, typer.Option(help="Folder for the head, with its conversations and checkpoints.")],
    model: Annotated[
        str, typer.Option(help="Chat model to draft for: short name, local folder, GGUF file or Hub id.")
    ] = "smollm2-135m",
    conversations: Annotated[int, typer.Option(min=16, help="Conversations to sample and learn from.")] = 512,
    passes: Annotated[int, typer.Option(min=1, help="Times that every conversation is seen.")] = 8,
    draft_len: Annotated[int, typer.Option(min=1, help="Tokens of a draft that it is trained for.")] = 2,
    vocabulary: Annotated[int, typer.Option(min=1, help="Most frequent tokens that the head can name.")] = 6144,
    learning_rate: Annotated[float, typer.Option(help="At its peak.")] = 7e-4,
    start_from: Annotated[
        str | None, typer.Option(help="A head to go on from: a folder, or the short name of a model that has one.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to sample and train: auto, cpu or cuda.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of the first weights and the order of the conversations.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Train a draft head for a model, on its own answers. Interrupted, it goes on where it was."""
    from minillm.policies.config import EngineConfig
    from minillm.training.make import make_head
    from minillm.training.train import TrainingSettings

    settings = TrainingSettings(
        passes=passes,
        draft_len=draft_len,
        learning_rate=learning_rate,
        vocabulary=vocabulary,
        start_from=start_from,
        seed=seed,
    )
    config = EngineConfig(model=model, device=device)
    facts = make_head(config, out, conversations, settings, progress=sys.stderr.isatty())
    if as_json:
        print(json.dumps(facts))
    else:
        held_out = facts["held_out"]
        print(f"{out}: trained on {facts['conversations']} conversations, {facts['tokens']} tokens")
        print("acceptance by position:", ", ".join(f"{share:.2f}" for share in held_out["acceptance_by_position"]))
        for k, emitted in enumerate(held_out["emitted_per_verify"], start=1):
            print(f"drafts of {k}: {emitted:.2f} tokens per step")
        print(f'to use it: --set speculative.method=draft_head --set speculative.model="{out}"')
