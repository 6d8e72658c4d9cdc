"""Rows of public serving measurements, as a table has them: one deployment, one load, a mean TTFT and a mean TPOT.

The columns are those of AIConfigurator's table of measured points (github.com/ai-dynamo/aiconfigurator, Apache-2.0),
with `concurrency` and the day that a run was `measured`. Rows come from several places; see `Point.is_inferencex`.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from course.simulator.errors import RecordingError
from minillm.text_files import open_text

WARMED_UP = "2026-01-21"
"""The day since when InferenceX's client warms servers up."""
DISTINCT_PROMPTS = 100
"""Prompts that NVIDIA's clients make up unless told otherwise (GenAI-Perf's `--num-dataset-entries`)."""


class Refusal(Exception):
    """A row that can't be simulated. The message is the reason, the same for all rows with that reason."""


@dataclass(frozen=True, slots=True)
class Ways:
    """How a model is spread over accelerators, as a row has it; what it means is `layout.machine_of`'s business.
    None: the row leaves it out."""

    tp: int | None
    pp: int | None
    dp: int | None
    moe_tp: int | None
    moe_ep: int | None
    batch: int | None
    """Requests on each rank."""
    workers: int | None = None
    """Equal servers; of disaggregated pools."""


@dataclass(frozen=True, slots=True)
class Point:
    """One row."""

    name: str
    backend: str
    version: str
    model: str
    system: str
    precision: str
    """fp4, fp8 or bf16; "" is bf16, too."""
    is_disaggregated: bool
    isl: int
    osl: int
    concurrency: int | None
    """Requests that are open at a time."""
    measured: str
    """The day, of some."""
    server: Ways | None
    """None: disaggregated."""
    prefill: Ways | None
    decode: Ways | None
    ttft_s: float
    tpot_s: float

    @property
    def is_inferencex(self) -> bool:
        """Whether it comes from InferenceX (formerly InferenceMAX), whose client draws lengths from 0.8 to 1.0 of isl
        and osl. Those rows have lengths of 1024 and 8192 only, and a day or, a few, the number of attention's ranks:
        others leave that out."""
        is_stated = self.server is not None and self.server.dp is not None
        return {self.isl, self.osl} <= {1024, 8192} and (bool(self.measured) or is_stated)

    @property
    def is_one_batch(self) -> bool:
        """Whether all requests were sent at the start, and none after: SGLang's `bench_one_batch_server`, whose rows
        have powers of two as lengths. TTFT tells, too: it is what half of such a batch takes."""
        lengths = self.isl, self.osl
        return self.backend == "sglang" and not self.is_inferencex and all(n & (n - 1) == 0 for n in lengths)

    @property
    def is_cold(self) -> bool:
        """Whether nothing was sent before what is measured. InferenceX's clients warm up one server, with twice as many
        requests as will be open, since 2026-01-21."""
        return self.is_inferencex and not self.is_disaggregated and "" < self.measured < WARMED_UP

    @property
    def repeats_prompts(self) -> bool:
        """Whether the client sends the same DISTINCT_PROMPTS over and over, which the prefix cache then has:
        AIConfigurator's runs of vLLM 0.12 in fp8, with lengths in thousands. With many requests they answered more
        prompts than the cards can compute at their peak (89 of 4,000 tokens a second on 8 H200), and as fast as if none
        were computed; with fewer than DISTINCT_PROMPTS they took as long as if all were. vLLM caches prefixes unless
        told otherwise."""
        told = self.backend == "vllm" and self.version.startswith("0.12") and self.precision == "fp8"
        return told and not self.is_disaggregated and self.isl % 1000 == 0

    @property
    def precision_name(self) -> str:
        return self.precision or "bf16"


def read_points(path: Path) -> list[Point]:
    """All rows of a table.

    Raises:
        RecordingError: it cannot be read, has no rows, or a row lacks a number; the message names it.
    """
    try:
        with open_text(path, newline="") as file:
            points = list(_points(csv.DictReader(file), path))
    except (OSError, UnicodeError, csv.Error) as error:
        raise RecordingError(f"cannot read {path}: {error}") from None
    if not points:
        raise RecordingError(f"{path} has no points")
    return points


def _points(rows: Iterator[Mapping[str, str]], path: Path) -> Iterator[Point]:
    for number, row in enumerate(rows, start=2):
        try:
            yield _point(row)
        except KeyError as missing:
            raise RecordingError(f"{path} has no column {missing}") from None
        except (TypeError, ValueError) as error:
            raise RecordingError(f"{path}:{number}: {error}") from None


def _point(row: Mapping[str, str]) -> Point:
    is_disaggregated = row["mode"] == "disagg"
    concurrency = _count(row, "concurrency")
    return Point(
        name=row["id"],
        backend=row["backend"],
        version=row["backend_version"],
        model=row["model_path"],
        system=row["system"],
        precision=row["precision"],
        is_disaggregated=is_disaggregated,
        isl=_needed(row, "isl"),
        osl=_needed(row, "osl"),
        concurrency=concurrency,
        measured=row["measured"],
        server=None if is_disaggregated else _ways(row, ""),
        prefill=_ways(row, "prefill_") if is_disaggregated else None,
        decode=_ways(row, "decode_") if is_disaggregated else None,
        ttft_s=_milliseconds(row, "silicon_ttft_ms"),
        tpot_s=_milliseconds(row, "silicon_tpot_ms"),
    )


def _ways(row: Mapping[str, str], pool: str) -> Ways:
    return Ways(
        tp=_count(row, f"{pool}tp_size"),
        pp=_count(row, f"{pool}pp_size"),
        dp=_count(row, f"{pool}attention_dp_size"),
        moe_tp=_count(row, f"{pool}moe_tp_size"),
        moe_ep=_count(row, f"{pool}moe_ep_size"),
        batch=_count(row, f"{pool}batch_size"),
        workers=_count(row, f"{pool}num_workers") if pool else None,
    )


def _count(row: Mapping[str, str], column: str) -> int | None:
    """A whole number; None if there is none, or 0."""
    text = row[column]
    return int(float(text)) or None if text else None


def _needed(row: Mapping[str, str], column: str) -> int:
    if (count := _count(row, column)) is None:
        raise ValueError(f"{column} is missing")
    return count


def _milliseconds(row: Mapping[str, str], column: str) -> float:
    if not (seconds := float(row[column] or "nan") / 1e3) > 0:
        raise ValueError(f"{column} is {row[column]!r}, and has to be above zero")
    return seconds
