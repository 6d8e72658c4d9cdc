"""Draft heads on disk: a folder with two files.

- head.safetensors has the weights under the names of :class:`DraftHead`'s parameters, in any floating-point type, and
  `token_ids` [N], the tokens that the head can name. Embedding and output head are the model's and not in it.
- head.json has, under `shape`, the SHAPE of the model that it is for. The rest says to readers how it was made.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from minillm.core.errors import ConfigError
from minillm.model.checkpoints import read_json
from minillm.model.cpu import compute_in_float32
from minillm.model.decoder import Decoder
from minillm.model.errors import CorruptCheckpointError
from minillm.model.linear import replace_linears
from minillm.model.loader import LoadedModel, copy_weight
from minillm.model.packed import PackedInBands
from minillm.model.packing import choose_packings, pack_linears
from minillm.model.quantized import make_int8
from minillm.speculation.head import DraftHead

WEIGHTS, FACTS = "head.safetensors", "head.json"
HEADS = Path(__file__).parent / "heads"
"""Those that come with minillm: a folder for each model's short name."""
SHAPE = ("vocab_size", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim")
"""Fields of a model's configuration that must be those of the model the head was trained for."""
ROWS_AT_ONCE = 64
INSTEAD = "or use speculative.method=ngram or draft_model"
"""What drafts where there is no head."""


def load_head(name: str, model: LoadedModel) -> DraftHead:
    """A head ready to draft for the model, in the model's dtype and on its device.

    Args:
        name: short name of a model whose head comes with minillm, or a folder with one.
    Raises:
        ConfigError: there is no such head, or it was trained for a model of another shape.
        CorruptCheckpointError: its files cannot be read.
    """
    tensors, token_ids = read_head(name, model)
    head = DraftHead(model.model_config, len(token_ids), model.dtype, model.device)
    fill_parts(own_weights(head), tensors, Path(name), "the model's config.json")
    head.token_ids.copy_(token_ids)
    head.attach(embedding_table(model.decoder), output_rows(model.decoder))
    if model.device.type == "cpu" and make_light(head):
        compute_in_float32(head)
    return head.eval()


def make_light(head: DraftHead) -> bool:
    """Bring a 16-bit head's weights into an order that is read fast on a CPU. With our C++ all matrices but `fuse` are
    in 8 bits: rounding that one was seen to cost 0.3% of the first guesses of one head, rounding the others none.
    False, and nothing done, if there is no such order."""
    packings = choose_packings([head.fuse])
    if packings is None:
        return False
    if issubclass(packings[0], PackedInBands):
        replace_linears(head, make_int8, but=head.fuse)
    return pack_linears(head)


def read_head(name: str, model: LoadedModel) -> tuple[dict[str, Tensor], Tensor]:
    """The trained weights, and the tokens [N] that the head can name. See `load_head`."""
    folder = HEADS / name if (HEADS / name).is_dir() else Path(name).expanduser()
    if not (folder / FACTS).is_file():
        packaged = ", ".join(sorted(path.parent.name for path in HEADS.glob(f"*/{FACTS}"))) or "none"
        raise ConfigError(
            f"there is no draft head for {name!r} (minillm has: {packaged}): set speculative.model to a folder "
            f"with one, {INSTEAD}"
        )
    try:
        trained_for = dict(read_json(folder / FACTS)["shape"])
        tensors = load_file(folder / WEIGHTS)
        token_ids = tensors.pop("token_ids")
    except (OSError, TypeError, ValueError, KeyError, SafetensorError, CorruptCheckpointError) as error:
        raise CorruptCheckpointError(
            f"the draft head in {folder} cannot be read ({error}): fetch its files again, {INSTEAD}"
        ) from error
    for field in SHAPE:
        wanted = getattr(model.model_config, field)
        if trained_for.get(field) != wanted:
            raise ConfigError(
                f"the draft head in {folder} is for a model with {field}={trained_for.get(field)}, and {model.name!r} "
                f"has {wanted}: name one that is for it, {INSTEAD}"
            )
    vocab_size = model.model_config.vocab_size
    in_range = (token_ids >= 0) & (token_ids < vocab_size)
    if token_ids.is_floating_point() or token_ids.ndim != 1 or not in_range.all():
        raise CorruptCheckpointError(
            f"token_ids of the draft head in {folder} are not a list of the model's {vocab_size} tokens: fetch its "
            f"files again, {INSTEAD}"
        )
    return tensors, token_ids.long()


def own_weights(head: DraftHead) -> dict[str, Tensor]:
    """What is trained: all but the rows of the model's output head."""
    return {name: each.detach() for name, each in head.named_parameters() if not name.startswith("output.")}


@torch.no_grad()
def fill_parts(slots: dict[str, Tensor], tensors: dict[str, Tensor], source: Path, shaped_by: str) -> None:
    """Copy a head's tensors to where they belong.

    Args:
        slots: the part of the head that each fills, by the tensor's name.
        shaped_by: the file that says what shapes they have.
    Raises:
        CorruptCheckpointError: tensors are missing, left over, of another shape, or no finite numbers; all are named.
    """
    problems = [f"missing tensor {name}" for name in sorted(slots.keys() - tensors.keys())]
    problems += [f"unexpected tensor {name}" for name in sorted(tensors.keys() - slots.keys())]
    for name in slots.keys() & tensors.keys():
        if problem := copy_weight(tensors[name], slots[name], shaped_by):
            problems.append(f"{name} {problem}")
    if problems:
        raise CorruptCheckpointError(
            f"{source} does not hold the weights of a draft head for this model: {'; '.join(problems)}. Fetch its "
            f"files again, {INSTEAD}"
        )


@torch.inference_mode()
def embedding_table(decoder: Decoder) -> Tensor:
    """[V, h]; where it is the quantized output head's rows, they are widened into one of its own."""
    if decoder.embed_tokens is not None:
        return decoder.embed_tokens
    head: Any = decoder.lm_head
    ids = torch.arange(decoder.config.vocab_size, device=decoder.norm.weight.device)
    return torch.cat([head.rows(part).bfloat16() for part in ids.split(ROWS_AT_ONCE)])


@torch.inference_mode()
def output_rows(decoder: Decoder) -> Tensor:
    """[V, h] the weights of the model's output head, in whatever way they are packed."""
    if decoder.config.tie_word_embeddings:
        return embedding_table(decoder)
    # The i-th unit vector's logits are the i-th column.
    table = decoder.embed_tokens
    assert table is not None, "an untied model has both"
    units = torch.eye(decoder.config.hidden_size, dtype=decoder.activation_dtype, device=table.device)
    return torch.cat([decoder.lm_head(part).to(table.dtype) for part in units.split(ROWS_AT_ONCE)]).T
