"""Which model the lessons run on here, if nothing names one: an 8B on a GPU that holds it, else the small one.

python -m course.lab.card_model     fetches it, and prints its name for MINILLM_LAB_MODEL: what `make lab` asks

On a GPU the small model shows little but launch times: its weights are read in a fraction of what a launch takes.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from course.simulator.cost.sizes import ModelCost
from minillm.host.storage import say
from minillm.model import checkpoints
from minillm.model.errors import ModelError

LARGE, SHAPE = "Qwen/Qwen3-8B", "qwen3-8b"
"""On the Hub without a licence to accept first; and its shape, which comes with minillm."""
KV_TOKENS = 16_384
"""Room that lessons want beside the weights, all requests together: twice their usual pool, since some make a second
engine."""
USABLE = 0.9
"""Share of a card's free memory to plan with: steps and graphs take some."""
SMALL = "the small model, SmolLM2-135M"


@dataclass(frozen=True, slots=True)
class Box:
    """What the choice rests on."""

    gpu: str | None
    """Its name; None = PyTorch sees none."""
    free_bytes: int = 0
    """Free bytes of the GPU's memory."""
    disk_bytes: int = 0
    """Free where the Hub's models are kept."""
    has_weights: bool = False
    """They are there already."""
    hub_error: str | None = None
    """Why the Hub doesn't give the model; None = it would."""


def large_bytes() -> tuple[int, int]:
    """Bytes of the large model's weights, and of these with the KV cache that lessons want."""
    shape = ModelCost.of(checkpoints.load_model_config(checkpoints.SHAPES[SHAPE]))
    weights = int(shape.stored_bytes("bfloat16"))
    return weights, weights + KV_TOKENS * shape.kv_bytes_per_token("bfloat16")


def choose(box: Box) -> tuple[str | None, str]:
    """The model's name, None for the default, and a sentence or two that say so."""
    if box.gpu is None:
        return None, ""
    weights, wanted = large_bytes()
    card = f"{box.gpu}, {box.free_bytes / 1e9:.0f} GB free"
    if wanted > USABLE * box.free_bytes:
        return None, f"{card}: lessons run on {SMALL}. An 8B wants {wanted / USABLE / 1e9:.0f} GB free."
    words = (
        f"{card}: lessons run on {LARGE}. MINILLM_LAB_MODEL=smollm2-135m make lab takes {SMALL}. The minutes that "
        "lessons state were measured with that one; docs/gpu-box.md says what an 8B took on an H100."
    )
    if box.has_weights:
        return LARGE, words
    why_not = box.hub_error
    if why_not is None and box.disk_bytes < weights:
        why_not = f"{box.disk_bytes / 1e9:.0f} GB of disk are free, and it takes {weights / 1e9:.1f}"
    if why_not is not None:
        return None, (
            f"{card}: room for an 8B, but {LARGE} can't be fetched ({why_not}), so lessons run on {SMALL}. "
            "MINILLM_LAB_MODEL=/path/to/a/folder names another."
        )
    minutes = weights / 100e6 / 60
    return LARGE, f"{words} It is fetched now, once: {weights / 1e9:.1f} GB, {minutes:.0f} minutes at 100 MB/s."


def look() -> Box:
    """At this machine. Asks the Hub for at most five seconds, and only where the answer matters."""
    if shutil.which("nvidia-smi") is None:  # PyTorch takes seconds to say so
        return Box(None)
    import torch

    if not torch.cuda.is_available():
        return Box(None)
    name, free = torch.cuda.get_device_name(), torch.cuda.mem_get_info()[0]
    if has_weights():
        return Box(name, free, has_weights=True)
    return Box(name, free, disk_free(), hub_error=hub_error() if large_bytes()[1] <= USABLE * free else None)


def has_weights() -> bool:
    """Whether the Hub's cache has all of the large model."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = snapshot_download(LARGE, allow_patterns=checkpoints.HUB_FILES, local_files_only=True)
        return all(file.is_file() for file in checkpoints.weight_files(Path(folder)))
    except (LocalEntryNotFoundError, ModelError):  # not there, or a fetch was cut short
        return False


def hub_error() -> str | None:
    """Why the Hub doesn't give the large model; None = it would."""
    from huggingface_hub import HfApi

    try:
        HfApi().model_info(LARGE, timeout=5)
    except Exception as error:  # The Hub's client and the network below it have dozens of error types.
        return f"the Hugging Face Hub: {type(error).__name__}"
    return None


def disk_free() -> int:
    """Bytes free where the Hub's models are kept."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(HF_HUB_CACHE)
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def main() -> int:
    """Print the model's name, nothing for the default; what there is to say goes to standard error."""
    model, words = choose(look())
    if words:
        say(words)
    if model is not None:
        try:
            checkpoints.resolve(model)
        except ModelError as error:
            say(f"{error}. Lessons run on {SMALL}.")
            return 0
        print(model)
    return 0


if __name__ == "__main__":
    sys.exit(main())
