"""Lesson 09, quantization: formats, traffic, decode steps and phases in each, and what a text says of quality."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course.lab.lab import Lab
from course.lab.model_shape import ModelShape
from course.lab.noise import CEILING, ratio_of
from course.lab.predict import MeasuredAnswer
from course.lab.roof import Roof
from course.lab.run import Run, percentile
from course.lab.style import seconds
from course.lab.watched_engine import WatchedEngine
from course.lab.workloads import LabWorkload
from course.lessons.lesson_06.run import RESTLESS, Dot, room, side_by_side
from course.measure.quality import Cost, Quality, QualityLimits, QualityVerdict, judge, request_bytes
from course.measure.scoring import GIVEN, TextScore, decode_texts, held_text
from minillm import Engine, EngineConfig
from minillm.bench.target import Costs, Target
from minillm.core.brief import brief
from minillm.core.errors import ConfigError
from minillm.core.timeline import PHASES

# ---------------------------------------------------------------- formats


@dataclass(frozen=True)
class NumberFormat:
    """What is kept in how many bits."""

    rounded: str
    """What is rounded to which grid."""
    weights: dict[str, Any] = field(default_factory=dict)
    """Engine fields that decide the weights in memory."""
    kv: dict[str, Any] = field(default_factory=dict)
    """Engine fields that decide how keys and values are kept."""


PLAIN = "bf16"
FORMATS = {
    PLAIN: NumberFormat("nothing: as it came"),
    "int8": NumberFormat("weights; a scale for each output", {"quantization": "int8"}),
    "int4": NumberFormat("weights; a scale and an offset for 32 inputs", {"quantization": "int4"}),
    "int4 g64": NumberFormat(
        "weights; a scale and an offset for 64 inputs", {"quantization": "int4", "int4_group_size": 64}
    ),
    "KV int8": NumberFormat("keys and values; a scale for each token and head", kv={"kv_cache_dtype": "int8"}),
}


class Shelf:
    """One lab for each format, so that formats can take turns: whatever disturbs the machine disturbs all, and none has
    to make its KV pool or graphs anew for its turn.

    Loading a set of weights takes a second or two, and happens when it is first asked for. Their runs take turns, too:
    the labs share a device, and what one measures beside another would be of both.

    Args:
        instead_of: closed before, if there is one: a cell that is run again leaves no weights behind.
    """

    def __init__(self, lab: Lab, *, instead_of: "Shelf | None" = None) -> None:
        if instead_of is not None:
            instead_of.close()
        self.lab = lab
        self._labs: dict[str, Lab] = {}
        self._reasons: dict[str, str | None] = {}

    def why_not(self, name: str) -> str | None:
        """Why this device has no kernels for a format; None = it has. Loads it, the first time."""
        if name not in self._reasons:
            try:
                self.engine(name)
                self._reasons[name] = None
            except ConfigError as error:
                self._reasons[name] = str(error)
        return self._reasons[name]

    def usable(self, names: Iterable[str]) -> list[str]:
        """Those of the formats that this device can run."""
        return [name for name in names if self.why_not(name) is None]

    def of(self, name: str) -> Lab:
        """The lab of this format. Where only keys and values are rounded, it has the weights of the lab that was given:
        on a simulated device it is that lab."""
        rounded = FORMATS[name]
        if not rounded.weights and (not rounded.kv or self.lab.simulated is not None):
            return self.lab
        if name not in self._labs:
            make_engine = None if rounded.weights else self._on_the_same_weights
            fields = {**self.lab.defaults, **rounded.weights, **rounded.kv}
            self._labs[name] = Lab(short=self.lab.scale < 1, make_engine=make_engine, **fields)
        return self._labs[name]

    def _on_the_same_weights(self, config: EngineConfig) -> WatchedEngine:
        return WatchedEngine(config, self.lab.model)

    def engine(self, name: str) -> Engine:
        """An engine of your own in this format, without traffic; step it while the shelf's lab is `alone`."""
        with self.lab.alone():
            return self.of(name).engine(**FORMATS[name].kv)

    def run(self, name: str, workload: LabWorkload, **fields: Any) -> Run:
        """Play traffic to it, when no other format plays."""
        with self.lab.alone():
            return self.of(name).run(workload, **{**fields, **FORMATS[name].kv})

    def turns(
        self, workload: LabWorkload, names: Sequence[str], *, rounds: int | None = None, **fields: Any
    ) -> dict[str, list[Run]]:
        """The same traffic to each, round after round, every other round backwards.

        Args:
            rounds: None = as many as it takes to tell two formats apart.
        """
        found: dict[str, list[Run]] = {name: [] for name in names}
        for i in range(rounds or self.rounds):
            for name in names if i % 2 == 0 else reversed(names):
                found[name].append(self.run(name, workload, **fields))
        return found

    @property
    def rounds(self) -> int:
        """How often each format has its turn. By luck alone, all 5 runs of one kind beat all 5 of another in 1 of 126
        comparisons; 3 and 3 in 1 of 10, which is enough for a run whose figures aren't kept."""
        return 5 if self.lab.scale == 1 else 3

    def close(self) -> None:
        """Let go of the weights, but not of the lab that was given."""
        for lab in self._labs.values():
            lab.close()
        self._labs.clear()


# ---------------------------------------------------------------- traffic

WINDOW = 256
"""Tokens that a request reserves where memory is what is short."""
GPU_PROMPT = 1500
"""Tokens of a long prompt on a GPU: several times those at which a step's arithmetic takes as long as its reads."""
MEMORY_SLOTS = 4
"""Windows of 16-bit keys and values for which that memory has room; and a little, for scales."""


@dataclass(frozen=True)
class EngineScene:
    """Traffic, and the engine fields that go with it."""

    name: str
    workload: LabWorkload
    fields: dict[str, Any]


def long_answer(lab: Lab) -> EngineScene:
    """One reader, a short question, a long answer: nearly all of it is decode."""
    return _roomy("batch 1, long answer", side_by_side(1, 0, _scaled(lab, 48, 12)))


def is_accelerated(lab: Lab) -> bool:
    """Whether the lab's device is a GPU, real or simulated: it takes hundreds of rows until a step doesn't wait for
    weights, where a CPU takes tens."""
    return lab.simulated is not None or Target(device=lab.config().device).torch_device().type == "cuda"


def long_prompt(lab: Lab) -> EngineScene:
    """One reader, a long prompt, a short answer: most of it is prefill."""
    tokens = GPU_PROMPT if is_accelerated(lab) else _scaled(lab, 600, 120)
    return _roomy("batch 1, long prompt", side_by_side(1, tokens, 2 if is_accelerated(lab) else 4))


def full_batch(lab: Lab) -> EngineScene:
    """Many requests, all of them in the same batch, answers of a few words."""
    count = _scaled(lab, 128, 32) if is_accelerated(lab) else _scaled(lab, 32, 8)
    return _roomy("a full batch", side_by_side(count, 0, _scaled(lab, 14, 8)))


def one_slot(lab: Lab) -> EngineScene:
    """A few requests and one slot: the wait is for the others' answers."""
    return _roomy("one slot, a queue", side_by_side(_scaled(lab, 6, 3), 0, _scaled(lab, 14, 8)), max_num_seqs=1)


def short_of_memory(lab: Lab) -> EngineScene:
    """Slots for all, and memory for the keys and values of a few."""
    workload = side_by_side(_scaled(lab, 12, 8), _scaled(lab, 100, 40), _scaled(lab, 14, 8))
    window = WINDOW * ModelShape.of_lab(lab).kv_bytes_per_token
    return _roomy(
        "short of KV memory",
        workload,
        num_kv_blocks=None,
        kv_cache_memory_gb=(MEMORY_SLOTS + 0.2) * window / 1e9,
        max_model_len=WINDOW,
        kv_reservation="max_len",
    )


SCENES = (long_answer, long_prompt, full_batch, one_slot, short_of_memory)


def scenes(lab: Lab) -> dict[str, EngineScene]:
    """All of them, by name."""
    return {scene.name: scene for scene in (make(lab) for make in SCENES)}


def _roomy(name: str, workload: LabWorkload, **fields: Any) -> EngineScene:
    return EngineScene(name, workload, {**room(workload), **fields})


def _scaled(lab: Lab, usual: int, small: int) -> int:
    return usual if lab.scale == 1 else small


# ---------------------------------------------------------------- decode steps, batch by batch

BATCHES, SHORT_BATCHES = (1, 4, 8, 16, 32), (1, 8)
GPU_BATCHES, SHORT_GPU_BATCHES = (1, 8, 32, 128, 256), (1, 128)
SHORT_ROUNDS = 2
"""Runs of each batch of the sweep in the short form; the quietest counts."""
PLAUSIBLE = 1.25
"""A speedup over what the bytes allow by more than this is not the format's: something else was running, or the
rounded weights fit into a cache that the others are too large for."""
WEIGHTS = (PLAIN, "int8", "int4")
Sweep = dict[str, list[Dot]]
"""By format, decode steps of growing batches, short contexts."""


def shape_of(shelf: Shelf, name: str) -> ModelShape:
    """The lab's model in this format."""
    fields = {**FORMATS[name].weights, **FORMATS[name].kv}
    return ModelShape.of_lab(shelf.lab).stored_as(fields.get("quantization"), fields.get("kv_cache_dtype"))


def batches_of(lab: Lab) -> Sequence[int]:
    """Those of a sweep, as far as they tell something on the lab's device."""
    if is_accelerated(lab):
        return GPU_BATCHES if lab.scale == 1 else SHORT_GPU_BATCHES
    return BATCHES if lab.scale == 1 else SHORT_BATCHES


def sweep(shelf: Shelf, names: Sequence[str] = WEIGHTS, batches: Sequence[int] | None = None) -> Sweep:
    """Every batch in every format, by turns. The quietest run of each counts: a disturbance can only slow one down."""
    is_long = shelf.lab.scale == 1
    names = shelf.usable(names)
    found: Sweep = {name: [] for name in names}
    for batch in batches or batches_of(shelf.lab):
        work = side_by_side(batch, 0, (16 if batch <= 4 else 8) if is_long else 7)
        for name, runs in shelf.turns(work, names, rounds=None if is_long else SHORT_ROUNDS, **room(work)).items():
            each = [Dot.of(shape_of(shelf, name), run) for run in runs]
            found[name].append(min(each, key=lambda dot: dot.itl))
    return found


def speedup(found: Sweep, name: str, place: int = 0) -> float:
    """Decode speed over that of 16 bits, at one batch of the sweep: by the medians of its steps."""
    return found[PLAIN][place].itl / found[name][place].itl


def slowdown(found: Sweep, name: str) -> float:
    """A decode step at the largest batch of the sweep, over that of 16 bits: by the medians of its steps."""
    return 1 / speedup(found, name, -1)


def least_ratio(shelf: Shelf, name: str) -> float:
    """The smallest share of its time that a step can take in a format, by its bytes; with some room for noise."""
    plain, rounded = (shape_of(shelf, each).weight_bytes for each in (PLAIN, name))
    return rounded / plain / PLAUSIBLE


def break_even(found: Sweep, name: str) -> int | None:
    """The smallest batch of the sweep at which a format is no faster; None = it is faster at all of them."""
    dots = found[name]
    return next((dot.batch for i, dot in enumerate(dots) if speedup(found, name, i) <= 1), None)


def memory_share(found: Sweep, batch: int, roof: Roof) -> float:
    """Share of a 16-bit step at a batch of the sweep that its reads explain: the seconds that they take at least."""
    return min(next(dot for dot in found[PLAIN] if dot.batch == batch).mbu(roof), 1.0)


def share_in_full_batch(lab: Lab, found: Sweep, roof: Roof) -> float:
    """The same for the full batch: at the sweep's batch that's nearest to it."""
    requests = len(full_batch(lab).workload.arrivals)
    return memory_share(found, min((dot.batch for dot in found[PLAIN]), key=lambda n: abs(n - requests)), roof)


def is_uneven(dot: Dot) -> bool:
    """Whether even the middle half of its steps differ too much for their median to be trusted. One slow step of six
    doesn't move that."""
    return len(dot.gaps) > 2 and percentile(dot.gaps, 75) > RESTLESS * percentile(dot.gaps, 25)


def is_restless(found: Mapping[str, Sequence[Dot]]) -> bool:
    """Whether something else was running, too: steps of one kind that differ, or more gain than the bytes allow."""
    uneven = any(is_uneven(dots[i]) for dots in found.values() for i in (0, -1))
    allowed = {name: PLAUSIBLE * found[PLAIN][0].bytes / dots[0].bytes for name, dots in found.items()}
    return uneven or any(
        speedup(found, name, i) > allowed[name] for name, dots in found.items() for i in range(len(dots))
    )


# ---------------------------------------------------------------- our kernels on a GPU, as they were measured there

MEASURED = Path(__file__).parents[2] / "data/measured"
H100 = MEASURED / "gpu_check_h100_few_bits.json"
H100_SECTIONS = {PLAIN: "decode_8b", "int8": "decode_8b_int8", "int4": "decode_8b_int4", "fp8": "decode_8b_fp8"}


def h100_steps() -> dict[str, dict[int, float]]:
    """Seconds of an 8B's decode step on an H100, by format and batch, as `make gpu-check` measured them there."""
    sections = json.loads(H100.read_text())["sections"]
    return {
        name: {row["batch"]: row["step_s"] for row in sections[section]["results"]}
        for name, section in H100_SECTIONS.items()
    }


# ---------------------------------------------------------------- phases, before and after

TELLING = 0.07
"""A change by less than this share is called no change, however steady the machine."""
BOTH = {
    (True, True): "both get faster",
    (True, False): "the full batch gets faster, the long prompt does not",
    (False, True): "the long prompt gets faster, the full batch does not",
    (False, False): "neither gets faster",
}
"""By whether the full batch, and whether the long prompt, was answered sooner."""


MATTERS = 0.02
"""Phases with a smaller share of E2E than this aren't judged."""


@dataclass(frozen=True)
class PhasePair:
    """One phase (or their sum, "E2E") before and after: mean seconds per request, a number for each run."""

    phase: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    least: float = 0.0
    """The smallest ratio that the bytes can explain; less is the machine's doing."""

    @property
    def was(self) -> float:
        return statistics.median(self.before)

    @property
    def now(self) -> float:
        return statistics.median(self.after)

    @property
    def ratio(self) -> float:
        return self.now / self.was if self.was > 0 else 1.0

    @property
    def is_clear(self) -> bool:
        """Every run of one kind beat every run of the other, and not by a hair."""
        apart = max(self.after) < min(self.before) or max(self.before) < min(self.after)
        return apart and abs(self.ratio - 1) > TELLING and not self.is_too_good

    @property
    def is_too_good(self) -> bool:
        return self.ratio < self.least

    @property
    def is_faster(self) -> bool:
        return self.is_clear and self.ratio < 1

    @property
    def is_slower(self) -> bool:
        return self.is_clear and self.ratio > 1

    @property
    def is_doubtful(self) -> bool:
        """The runs overlap, but their medians differ by too much to be called equal."""
        return not self.is_clear and not self.is_too_good and ratio_of(self.ratio, 1.0) > CEILING

    @property
    def told(self) -> str:
        """The ratio of the times; a tilde where the runs do not tell them apart."""
        if self.is_too_good:
            return f"~ ×{self.ratio:.2f}, more than the bytes allow, run it again"
        if self.is_doubtful:
            return f"~ ×{self.ratio:.2f}, not enough runs to tell"
        return f"time ×{self.ratio:.2f}" if self.is_clear else f"~ ×{self.ratio:.2f}, no clear difference"

    def matters(self, whole: "PhasePair") -> bool:
        """Whether its share of E2E is large enough to be judged.

        Args:
            whole: that of E2E.
        """
        return self.was + self.now >= 2 * MATTERS * whole.was


def pairs(before: Sequence[Run], after: Sequence[Run], least: float = 0.0) -> dict[str, PhasePair]:
    """By phase, and "E2E" for their sum.

    Args:
        least: the smallest ratio of decode that the bytes can explain. Other phases may gain more: a queue can vanish.
    """
    was, now = ([run.mean_phases() for run in runs] for runs in (before, after))
    limits = {"decode": least, "prefill": least}
    found = {p: PhasePair(p, tuple(m[p] for m in was), tuple(m[p] for m in now), limits.get(p, 0.0)) for p in PHASES}
    sums = (tuple(sum(m.values()) for m in means) for means in (was, now))
    return {**found, "E2E": PhasePair("E2E", *sums)}


def compare(shelf: Shelf, scene: EngineScene, name: str = "int8") -> dict[str, PhasePair]:
    """The scene in 16 bits and in a format, by turns."""
    runs = shelf.turns(scene.workload, (PLAIN, name), **scene.fields)
    only_weights = not FORMATS[name].kv
    return pairs(runs[PLAIN], runs[name], least_ratio(shelf, name) if only_weights else 0.0)


def who_gained(batch: Mapping[str, PhasePair], prompt: Mapping[str, PhasePair]) -> MeasuredAnswer | str:
    """Whether a full batch and a long prompt are answered sooner; a sentence, if the runs cannot tell."""
    told = "; ".join(
        f"{name}: E2E {seconds(found['E2E'].was)} to {seconds(found['E2E'].now)}, {found['E2E'].told}"
        for name, found in (("full batch", batch), ("long prompt", prompt))
    )
    if batch["E2E"].is_doubtful or prompt["E2E"].is_doubtful:
        return told
    return MeasuredAnswer(BOTH[batch["E2E"].is_faster, prompt["E2E"].is_faster], told)


def decode_gain(found: Mapping[str, PhasePair]) -> MeasuredAnswer:
    """How many times as fast decode became: the answer to a prediction."""
    decode = found["decode"]
    return MeasuredAnswer(1 / decode.ratio, f"decode {seconds(decode.was)} to {seconds(decode.now)}, {decode.told}")


# ---------------------------------------------------------------- quality

PIECES, PIECE = (8, 96), (4, 24)
"""Pieces of the text, and tokens in each: usually, and in the short form."""
NOISE = 1.05
"""Decode speeds closer than that are equal."""


@dataclass(frozen=True)
class Scored:
    """One format: what a text says of it, and what it costs."""

    quality: Quality
    cost: Cost
    positions: int
    """Tokens scored."""

    __repr__ = brief


Scores = dict[str, Scored]
"""By format; the first is the 16-bit reference."""


def score_formats(shelf: Shelf, names: Sequence[str] = tuple(FORMATS)) -> Scores:
    """Every format decodes the same pieces of a text, token by token; what really came next is what scores.

    Args:
        names: formats, the 16-bit reference first.
    """
    names = shelf.usable(names)
    speeds = {name: dots[0].tokens_per_s for name, dots in sweep(shelf, names, (1,)).items()}
    with shelf.lab.alone():
        return _scores(shelf, speeds)


def _scores(shelf: Shelf, speeds: Mapping[str, float]) -> Scores:
    """What a text says of each format.

    Args:
        speeds: tokens/s of one reader, by format.
    """
    count, size = PIECES if shelf.lab.scale == 1 else PIECE
    token_ids = shelf.lab.model.tokenizer.encode(held_text())
    apart = (len(token_ids) - size) // (count - 1)
    pieces = [token_ids[i * apart : i * apart + size] for i in range(count)]
    given = [size // GIVEN] * count
    reference = list(decode_texts(shelf.engine(PLAIN), pieces, given))
    scores: Scores = {}
    for name, speed in speeds.items():
        engine, score = shelf.engine(name), TextScore()
        for theirs, ours in zip(reference, decode_texts(engine, pieces, given)):
            score.add(theirs.logits, ours.logits, ours.next_ids)
        costs = Costs.of(engine).bytes
        plain_bytes = scores[PLAIN].cost.weight_bytes if scores else costs.weights
        gain = believed(speed / speeds[PLAIN], plain_bytes / costs.weights)
        cost = Cost(costs.weights, costs.kv_per_token, request_bytes(engine), gain * speeds[PLAIN])
        scores[name] = Scored(_quality(score), cost, score.positions)
    return scores


def believed(gain: float, allowed: float) -> float:
    """A speedup, or 1 where it is noise: too small to be told from none, or more than the bytes allow."""
    return 1.0 if 1 / NOISE < gain < NOISE or gain > PLAUSIBLE * allowed else gain


def _quality(score: TextScore) -> Quality:
    """What a text alone can tell: the tasks of `minillm bench quality` are left out, whichever format it is."""
    return Quality(
        perplexity=score.candidate_perplexity,
        kl=score.kl / score.positions,
        agreement=score.agreed / score.positions,
        choices_right=0,
        reading_right=0,
    )


def rise(scores: Mapping[str, Scored], name: str) -> float:
    """Rise of perplexity over the reference's, as a share."""
    return scores[name].quality.perplexity / scores[PLAIN].quality.perplexity - 1


def verdict(scores: Mapping[str, Scored], name: str, limits: QualityLimits) -> QualityVerdict:
    """By the rule of `minillm bench quality`: better only with a gain, without a loss, and with every limit kept."""
    both = scores[PLAIN], scores[name]
    return judge([each.quality for each in both], [each.cost for each in both], limits)


def sampling_error(share: float, items: int) -> float:
    """Standard error of a share of so many independent items: what an accuracy moves by luck alone."""
    return (share * (1 - share) / items) ** 0.5
