"""EAGLE-3 heads on disk, as their authors publish them: a folder with config.json, and weights in safetensors files or
pytorch_model.bin.

- config.json is that of a Llama of one layer, with `draft_vocab_size` N and `LlamaForCausalLMEagle3` among its
  architectures. `eagle_aux_hidden_state_layer_ids`, there or under `eagle_config`, are the depths at which the head
  reads the model, counted as vLLM does: the stream that enters layer i. (SGLang, and ModelOpt where it trains heads,
  take the one that leaves it.) Where they aren't stated, they are 2, n / 2 and n - 3 of n layers, for all.
- Tensors: `fc`, `norm`, `lm_head`, those of the layer under `midlayer` or `layers.0`, and `embed_tokens` unless it's
  the model's. `d2t` [N] is what has to be added to a row of the output head to get its token; `t2d` says the same the
  other way round.
"""

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minillm.core.errors import ConfigError
from minillm.model.checkpoints import errors_naming, iter_weights, read_json
from minillm.model.config import ModelConfig
from minillm.model.cpu import optimize_for_cpu
from minillm.model.errors import CorruptCheckpointError, UnsupportedArchitectureError
from minillm.model.loader import LoadedModel, layer_slots
from minillm.speculation.eagle3 import Eagle3Head
from minillm.speculation.head_file import FACTS, INSTEAD, embedding_table, fill_parts

CONFIG, PICKLED = "config.json", "pytorch_model.bin"
ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
LAYER, OTHER_LAYER, EMBEDDINGS = "midlayer", "layers.0", "embed_tokens.weight"
DEPTHS = "eagle_aux_hidden_state_layer_ids"
SUPPORTED: dict[str, Any] = {
    "num_hidden_layers": 1,
    "use_aux_hidden_state": True,
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "parallel_draft_step": 1,
    "quantization_config": None,
}
"""Fields of config.json, or of its eagle_config, that make another head of it, and their only value that is computed
here."""


def holds_eagle3(folder: Path) -> bool:
    """Whether a folder is to be read as such a head, rather than as one in our format."""
    return (folder / CONFIG).is_file() and not (folder / FACTS).is_file()


def load_eagle3(folder: Path, model: LoadedModel) -> Eagle3Head:
    """A head ready to draft for the model, in the model's dtype and on its device.

    Raises:
        ConfigError: it was trained for a model of another shape.
        UnsupportedArchitectureError: it is another kind of head.
        CorruptCheckpointError: its files cannot be read, or are not what config.json describes.
    """
    hf = read_json(folder / CONFIG)
    head = make_head(hf, model, folder)
    tensors = {name.replace(f"{OTHER_LAYER}.", f"{LAYER}."): tensor for name, tensor in read_tensors(folder).items()}
    head.token_ids.copy_(read_token_ids(tensors, len(head.token_ids), head.config.vocab_size, folder))
    [layer] = head.layers
    slots = {
        "fc.weight": head.fc.weight,
        "norm.weight": head.norm.weight,
        "lm_head.weight": head.output.weight,
        f"{LAYER}.hidden_norm.weight": head.hidden_norm.weight,
        **{name: slot.part for name, slot in layer_slots(layer, LAYER).items()},
    }
    shape = (head.config.vocab_size, head.config.hidden_size)
    if EMBEDDINGS in tensors or head.config.hidden_size != model.model_config.hidden_size:
        head.embed_tokens = slots[EMBEDDINGS] = torch.empty(shape, dtype=model.dtype, device=model.device)
    else:
        head.embed_tokens = embedding_table(model.decoder).detach()
    fill_parts(slots, tensors, folder, CONFIG)
    if model.device.type == "cpu":
        optimize_for_cpu(head)
    return head.eval()


def make_head(hf: dict[str, Any], model: LoadedModel, folder: Path) -> Eagle3Head:
    """The head that a config.json describes, without its weights. Raises as `load_eagle3`."""
    # The authors' own configs state the target's architecture; only the size of the draft vocabulary tells them apart.
    own = "LlamaForCausalLM" if "draft_vocab_size" in hf else None
    if not any(name in (*ARCHITECTURES, own) for name in hf.get("architectures") or ()):
        raise UnsupportedArchitectureError(
            f"the draft head in {folder} has architectures={hf.get('architectures')}: minillm reads EAGLE-3 heads made "
            f"like a Llama ({', '.join(ARCHITECTURES)}), {INSTEAD}"
        )
    eagle = hf.get("eagle_config") or {}
    if not isinstance(eagle, dict):
        raise CorruptCheckpointError(f"{folder / CONFIG}: eagle_config is {eagle!r}, and has to be an object")
    for field, value in SUPPORTED.items():
        found = eagle.get(field, hf.get(field, value))
        if found is not None and found != value:
            raise UnsupportedArchitectureError(
                f"the draft head in {folder} has {field}={found!r}, and minillm computes those with {value!r}: name "
                f"another one, {INSTEAD}"
            )
    with errors_naming(folder):
        config = ModelConfig.from_hf({**hf, "architectures": ["LlamaForCausalLM"]})
    target, size = model.model_config, hf.get("target_hidden_size") or config.hidden_size
    for field, found in (("hidden_size", size), ("vocab_size", config.vocab_size)):
        if found != getattr(target, field):
            raise ConfigError(
                f"the draft head in {folder} is for a model with {field}={found}, and {model.name!r} has "
                f"{getattr(target, field)}: name one that is for it, {INSTEAD}"
            )
    num_tokens, normed = hf.get("draft_vocab_size") or config.vocab_size, hf.get("norm_before_residual") or False
    if not (type(num_tokens) is int and 0 < num_tokens <= config.vocab_size and type(normed) is bool):
        raise CorruptCheckpointError(
            f"{folder / CONFIG}: draft_vocab_size is {num_tokens!r} of {config.vocab_size} tokens, and "
            f"norm_before_residual {normed!r}"
        )
    depths = read_depths(hf.get(DEPTHS) or eagle.get(DEPTHS), target.num_layers, folder)
    return Eagle3Head(config, num_tokens, depths, size, normed, model.dtype, model.device)


def read_depths(stated: Any, num_layers: int, folder: Path) -> tuple[int, ...]:
    """Where the head reads a model of so many layers."""
    depths = stated or [2, num_layers // 2, num_layers - 3]
    if not isinstance(depths, list) or any(type(each) is not int for each in depths):
        raise CorruptCheckpointError(f"{folder / CONFIG}: {DEPTHS} is {depths!r}, and has to be a list of numbers")
    if depths != sorted(set(depths)) or not 0 <= depths[0] <= depths[-1] <= num_layers:
        raise ConfigError(
            f"the draft head in {folder} reads the model before its layers {depths}, which have to ascend, and there "
            f"are {num_layers}: name one that is for this model, {INSTEAD}"
        )
    return tuple(depths)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors in the folder. A pickle is read as weights only: it can't run anything."""
    if not (folder / PICKLED).is_file() or any(folder.glob("*.safetensors")):
        return dict(iter_weights(folder))
    try:
        tensors = torch.load(folder / PICKLED, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        raise CorruptCheckpointError(
            f"{folder / PICKLED} is damaged, or holds more than tensors ({error}): fetch it again, {INSTEAD}"
        ) from error
    if not isinstance(tensors, dict) or not all(isinstance(each, Tensor) for each in tensors.values()):
        raise CorruptCheckpointError(f"{folder / PICKLED} is no table of tensors: fetch it again, {INSTEAD}")
    return tensors


def read_token_ids(tensors: dict[str, Tensor], num_tokens: int, vocab_size: int, folder: Path) -> Tensor:
    """[N] the tokens that the head can name. Takes what says so out of the tensors."""
    to_target, to_draft = tensors.pop("d2t", None), tensors.pop("t2d", None)
    rows = torch.arange(num_tokens)
    if to_draft is not None and to_draft.shape != (vocab_size,):
        raise CorruptCheckpointError(f"t2d of the draft head in {folder} is {list(to_draft.shape)}, not [{vocab_size}]")
    if to_target is None and num_tokens == vocab_size:
        return rows
    problem = None
    if to_target is None:
        problem = "is missing"
    elif to_target.shape != rows.shape or to_target.is_floating_point():
        problem = f"is {list(to_target.shape)} of {to_target.dtype}, not whole numbers [{num_tokens}]"
    else:
        rows = rows + to_target
        if rows.min() < 0 or rows.max() >= vocab_size or len(rows.unique()) < num_tokens:
            problem = f"leads to tokens that the model doesn't have ({vocab_size}), or to one more than once"
    if problem:
        raise CorruptCheckpointError(f"d2t of the draft head in {folder} {problem}: fetch its files again, {INSTEAD}")
    return rows
