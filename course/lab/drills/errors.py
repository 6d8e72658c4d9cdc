"""Popular errors of serving interviews, the rule that finds each, and the right statement."""

from dataclasses import dataclass

from course.lab.drills.drill import Trap


@dataclass(frozen=True)
class Slip:
    """A sentence that is wrong wherever it stands."""

    rule: str
    unless: str
    right: str


QUANTIZE = Trap(
    "quantization",
    (
        "decode|itl|bandwidth|memory|prefill|kv + quality|depend|order|measure|derived",
        "quality + depend|order|measure",
        "capacity + quality|depend|order",
        "!quantization",
    ),
    "You propose quantization without saying which phase it moves and what quality floor guards it. It shortens "
    "reading "
    "weights (decode), does little for prefill and nothing for a queue unless capacity is what is short.",
)
ADD_GPUS = Trap(
    "replicas + effect|order|because",
    (
        "cost|capacity|spike|warm|number|utilised|lanes|routing|tp|acceptance|hit_rate|rollback|memory|kv",
        "depend|split + queue|capacity|ttft",
        "queue + effect|because",
    ),
    "You add hardware without saying which phase it helps and what it costs against a change of configuration.",
    price=0.15,
)
TRAPS = (QUANTIZE, ADD_GPUS)

SLIPS = (
    Slip(
        "quantization + queue + effect",
        "capacity|depend|decode|!effect|!queue|itl|bandwidth|kv",
        "Quantization does not shorten a queue by itself: waiting requests are not being computed. It helps only where "
        "faster steps raise a capacity that is too small.",
    ),
    Slip(
        "kv + quadratic",
        "compute|prefill|!quadratic",
        "KV memory grows linearly with length. What grows with the square is prefill's attention.",
    ),
    Slip(
        "speculation + ttft|queue|prefill + effect",
        "decode|itl|!speculation|depend|bandwidth|order|capacity|cost|batching",
        "Speculation shortens decoding. The first token still waits for the queue and for prefill.",
    ),
    Slip(
        "prefix_cache + itl|decode + effect",
        "prefill|ttft|capacity|!itl|!decode|kv|straggler|chunking|load|batching",
        "A cached prefix saves prefill, so it moves TTFT. Decode reads the same KV as before; others gain only where "
        "they shared a step with that prefill.",
    ),
    Slip(
        "gpu_util + because|trouble",
        "!gpu_util|batching|seats|!monitor|measure|monitor|compute|bandwidth|question|!trouble|cost|capacity|"
        "utilised|little|steady|spike|number",
        "GPU utilisation says that some kernel ran. It reads high with a batch of one; it convicts nobody.",
    ),
    Slip(
        "quadratic + decode + because|trouble",
        "prefill|split|!quadratic",
        "With a KV cache a decode step is linear in the context. The square belongs to prefill.",
    ),
)
"""`unless` lists atoms: one of them in the sentence, and the rule does not apply."""
