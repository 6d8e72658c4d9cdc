"""What happened in one run: every request, every step, and the numbers derived from their stamps.

A Run can be looked at while it is still going on; it then speaks of the moment it was taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise

from course.lab.snapshot import CACHED, FREE, EngineSnapshot, RequestView
from course.lab.style import PHASE_LABELS, seconds
from minillm import EngineConfig
from minillm.core.brief import brief
from minillm.core.step_log import StepRecord
from minillm.core.timeline import PHASES
from minillm.observe.percentiles import percentile as of_samples
from minillm.observe.records import Recordable

Owners = tuple[tuple[int, int], ...]
"""EngineSnapshot.block_owners, as (owner, how many in a row)."""


def run_lengths(owners: Sequence[int]) -> Owners:
    """Who owns the KV blocks, in a hundredth of the numbers."""
    return tuple((owner, len(list(same))) for owner, same in groupby(owners))


def phases_of(view: RequestView) -> dict[str, float]:
    """Seconds per phase, from the six borders; they sum to arrival-to-end."""
    return {phase: view.borders[i + 1] - view.borders[i] for i, phase in enumerate(PHASES)}


def gaps_of(moments: Sequence[float]) -> list[float]:
    """Gaps from each moment to the next."""
    return [later - earlier for earlier, later in pairwise(moments)]


def itl_of(view: RequestView) -> list[float]:
    """Gaps between deliveries, seconds."""
    return gaps_of(view.deliveries)


def percentile(values: Sequence[float], q: float) -> float | None:
    """The q-th percentile (0 to 100) by linear interpolation; None when there are no values."""
    return of_samples(values, q) if len(values) else None


def blocks_held(snapshot: EngineSnapshot) -> int:
    """KV blocks that some request holds; free ones that still keep a prefix do not count."""
    return sum(owner not in (FREE, CACHED) for owner in snapshot.block_owners)


@dataclass(frozen=True)
class Row:
    """One offered request, in the order the workload lists them: its row in every picture."""

    index: int
    request_id: str
    due: float
    """When the workload wanted to send it, seconds after the run began."""
    sent: float | None
    """When the client really sent it; later than `due` if the client limits its own concurrency."""
    refused: str | None
    """Why the engine refused it, if it did."""
    view: RequestView | None
    """What the engine knows of it; None before it is sent, and when it was refused."""
    texts: tuple[str, ...] = ()
    """The text that came with each delivery, as the client received it."""

    __repr__ = brief


@dataclass(frozen=True)
class RemoteSource:
    """What is different about a run on another server: it is seen from outside."""

    server: str
    """Which one: minillm, vllm, sglang, or unknown."""
    inferred: frozenset[str]
    """Phases whose borders were not seen; they are drawn hatched."""
    how: str
    """How the borders were inferred, or who told them, in one sentence."""
    gauges: dict[str, float]
    """running, waiting, kv_usage: the server's own, now, where it shows them."""


@dataclass(frozen=True)
class Run:
    """One workload played to one engine configuration."""

    workload: str
    config: EngineConfig
    rows: tuple[Row, ...]
    steps: tuple[StepRecord, ...]
    snapshot: EngineSnapshot
    fullest: EngineSnapshot
    """The snapshot in which requests held the most KV blocks."""
    outputs: tuple[Recordable, ...]
    """What the client received, of every request that has ended; for minillm.observe."""
    start: float
    """The engine's clock when the run began; `due` and `sent` count from here."""
    done: bool
    stopped: bool = False
    """Stop was pressed."""
    remote: RemoteSource | None = None
    """None: on our own engine, which stamps every border. Otherwise there are no steps and no KV blocks to see."""
    kv_frames: tuple[tuple[float, Owners], ...] = ()
    """Who held the KV blocks, from a moment of the engine's clock on: as often as the engine said so."""
    simulated_on: str = ""
    """What the times are those of, if not of this machine: `simulated: llama-3.1-8b on 4 x h100-sxm`."""

    def __repr__(self) -> str:
        state = "stopped" if self.stopped else "done" if self.done else "running"
        felt = {"TTFT": self.ttft, "ITL": self.itl, "E2E": self.e2e}
        told = "".join(f", {name} p50 {seconds(percentile(each, 50))}" for name, each in felt.items() if each)
        on = f", {self.simulated_on}" if self.simulated_on else ""
        return f"Run({self.workload}: {state}, {len(self.finished)} of {len(self.rows)} requests finished{told}{on})"

    def _repr_html_(self) -> str:
        from course.lab.display import table  # with ipywidgets, which a terminal does without

        phases = self.mean_phases()
        row = ("mean per request", *map(seconds, phases.values()), seconds(sum(phases.values())))
        header = ("", *(PHASE_LABELS[phase] for phase in phases), "E2E, their sum")
        return f"<p>{escape(repr(self))}</p>{table(header, [row])}"

    @property
    def views(self) -> list[RequestView]:
        return [row.view for row in self.rows if row.view is not None]

    @property
    def finished(self) -> list[RequestView]:
        """Requests that ran to their natural end: not aborted, not timed out."""
        return [view for view in self.views if view.finish_reason in ("stop", "length")]

    @property
    def ttft(self) -> list[float]:
        """Time to first token of every request that has one, seconds."""
        return [view.deliveries[0] - view.borders[0] for view in self.views if view.deliveries]

    @property
    def itl(self) -> list[float]:
        """All gaps between deliveries of all requests, pooled, seconds."""
        return [gap for view in self.views for gap in itl_of(view)]

    @property
    def e2e(self) -> list[float]:
        """Arrival to last byte of every request that finished, seconds."""
        return [view.borders[-1] - view.borders[0] for view in self.finished]

    @property
    def duration(self) -> float:
        """From the beginning of the run to the last stamp, seconds; the wait for the first arrival is in it."""
        return max((view.borders[-1] for view in self.views), default=self.start) - self.start

    @property
    def output_tokens(self) -> int:
        return sum(view.num_output_tokens for view in self.views)

    @property
    def throughput(self) -> float:
        """Output tokens per second over the whole run."""
        return self.output_tokens / self.duration if self.duration > 0 else 0.0

    def mean_phases(self) -> dict[str, float]:
        """Mean seconds per phase over the requests seen. Means add up: their sum is the mean E2E."""
        shares = [phases_of(view) for view in self.views]
        return {phase: sum(s[phase] for s in shares) / len(shares) if shares else 0.0 for phase in PHASES}

    def row_of(self, index: int) -> RequestView:
        """The request in row `index`.

        Raises:
            LookupError: it was refused or never sent.
        """
        view = self.rows[index].view
        if view is None:
            raise LookupError(f"request {index} never ran: {self.rows[index].refused or 'it was not sent'}")
        return view

    def same_workload(self, other: "Run | None") -> bool:
        """Whether a comparison row by row makes sense: it doesn't where one was stopped."""
        if other is None or self.stopped or other.stopped:
            return False
        return other.workload == self.workload and len(other.rows) == len(self.rows)
