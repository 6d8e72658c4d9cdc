"""What a prompt costs by the model's shape alone: counted, not measured.

A token goes through every matrix once (linear), and looks at itself and every token before it (attention):

    FLOPs(n) = per_token * n + per_pair * n^2 / 2 + the output head, once
"""

from course.lab.lab import Lab
from minillm.model.arithmetic import NUMBER_BYTES, ModelFlops
from minillm.model.checkpoints import SHAPES, load_config, resolve
from minillm.model.config import ModelConfig

BIG = "llama-3.1-70b"
"""The 70B of this lesson: it has positions for 128k tokens, so that long prompts can be asked about."""
EAGER_PASSES = 8
"""Times that textbook attention goes through the whole score matrix: it writes the scores; reads and writes them to
scale, to mask, and for the softmax; and reads them once more to weigh the values
(minillm/kernels/attention/eager.py)."""


def shape_of(model: str) -> ModelConfig:
    """A packaged shape, a model folder or a Hub id. Reads config.json only."""
    return ModelConfig.from_hf(load_config(SHAPES.get(model) or resolve(model)))


def lab_shape(lab: Lab) -> ModelConfig:
    """Of the model that the lab runs."""
    return shape_of(lab.config().model)


def short_name(lab: Lab) -> str:
    """The lab's model, as a label in a picture."""
    return lab.config().model.rstrip("/").rpartition("/")[2]


def attention_share(config: ModelConfig, tokens: float) -> float:
    """Of a prompt's FLOPs, the share inside attention: q k^T, and weights times values."""
    flops = ModelFlops.of(config)
    pairs = flops.per_pair * tokens * tokens / 2
    return pairs / (flops.per_token * tokens + pairs)


def crossover(config: ModelConfig) -> float:
    """The prompt length at which attention takes as many FLOPs as all matrices together, tokens."""
    flops = ModelFlops.of(config)
    return 2 * flops.per_token / flops.per_pair


def length_with_share(config: ModelConfig, share: float) -> float:
    """The prompt length at which attention has this share of the FLOPs, tokens."""
    return crossover(config) * share / (1 - share)


def flops_ratio(config: ModelConfig, shorter: int, longer: int) -> float:
    """How many times the FLOPs of the shorter prompt the longer one takes."""
    flops = ModelFlops.of(config)
    return flops.prefill(longer) / flops.prefill(shorter)


def exponent(config: ModelConfig, tokens: float) -> float:
    """The slope of log FLOPs against log length at this length: 1 plus attention's share."""
    return 1 + attention_share(config, tokens)


def projection_share(config: ModelConfig) -> float:
    """Of one layer's matrices, the share of attention's own four: q, k, v and the output."""
    own = config.hidden_size * (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return own / (own + 3 * config.hidden_size * config.intermediate_size)


def score_bytes(config: ModelConfig, rows: int, keys: int, dtype: str = "float32") -> int:
    """Bytes of one layer's score matrices, all heads: a number for each pair of a new token and a key."""
    return rows * keys * config.num_heads * NUMBER_BYTES[dtype]


def tile_bytes(config: ModelConfig, rows: int, keys: int, tile: int, dtype: str = "float32") -> int:
    """The same where only one tile of a head exists at a time."""
    return min(rows, tile) * min(keys, tile) * NUMBER_BYTES[dtype]


def chunk_sizes(tokens: int, chunk: int) -> list[int]:
    """A prompt of so many tokens, in chunks."""
    return [min(chunk, tokens - start) for start in range(0, tokens, chunk)]


def eager_seconds(config: ModelConfig, tokens: int, bytes_per_second: float, dtype: str = "bfloat16") -> float:
    """Seconds that textbook attention spends on moving its score matrices through memory, all layers; whole prompt."""
    return EAGER_PASSES * config.num_layers * score_bytes(config, tokens, tokens, dtype) / bytes_per_second
