"""What a simulated fleet leaves behind: every request as its client saw it, every replica, and samples over time."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from course.simulator.cluster.pool import Pool
from course.simulator.cluster.record import ClientRecord, Since
from course.simulator.cluster.replica import Replica
from course.summary import SLO, Summary, summarize
from minillm.observe.records import RequestRecord


@dataclass(frozen=True, slots=True)
class Sample:
    """One replica at one moment."""

    moment: float
    replica: str
    outstanding: int
    """Requests sent to it that have not come back."""
    waiting: int
    """In its queue."""
    running: int
    kv_used: float
    """Share of KV blocks that requests hold."""

    @classmethod
    def of(cls, moment: float, replica: Replica) -> "Sample":
        waiting, running = replica.num_waiting, replica.num_running
        return cls(moment, replica.name, replica.outstanding, waiting, running, replica.kv_used)


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """One replica over the whole run. Seconds and tokens."""

    replica: str
    pool: str
    started: float
    stopped: float
    busy_s: float
    """Seconds in steps."""
    num_steps: int
    num_requests: int
    """Answered, last attempts only."""
    num_output_tokens: int
    """Written, for any client."""
    prefix_hit_rate: float
    """Share of prompt tokens found in its prefix cache."""
    num_preemptions: int
    num_recomputed_tokens: int

    @classmethod
    def of(cls, replica: Replica, num_requests: int, end: float) -> "ReplicaReport":
        """When the run has ended."""
        engine = replica.engine
        queries = engine.scheduler.prefix_queries
        return cls(
            replica=replica.name,
            pool=replica.pool,
            started=min(replica.started, end),
            stopped=end if replica.stopped is None else min(replica.stopped, end),
            busy_s=replica.busy_s,
            num_steps=engine.scheduler.num_steps,
            num_requests=num_requests,
            num_output_tokens=replica.num_output_tokens,
            prefix_hit_rate=engine.scheduler.prefix_hits / queries if queries else 0.0,
            num_preemptions=engine.scheduler.num_preemptions,
            num_recomputed_tokens=engine.core.log.num_recomputed_tokens,
        )

    @property
    def up_s(self) -> float:
        return self.stopped - self.started

    @property
    def utilization(self) -> float:
        """Share of its time in steps. High in nearly every fleet that has any trouble: it proves nothing."""
        return self.busy_s / self.up_s if self.up_s > 0 else 0.0


@dataclass(frozen=True, slots=True, repr=False)
class FleetRun:
    """The results of one simulation."""

    records: tuple[ClientRecord, ...]
    """One per request of the workload, in its order."""
    reports: tuple[ReplicaReport, ...]
    samples: tuple[Sample, ...]
    duration: float
    """Until the last request ended for its client, seconds."""
    pools: dict[str, Pool]
    """For a closer look: `pools["main"].replicas[0].engine`."""
    link_busy_s: float = 0.0
    """Seconds in which KV caches moved from pool to pool."""

    def __repr__(self) -> str:
        ends = ", ".join(f"{num} {outcome}" for outcome, num in sorted(self.outcomes.items()))
        return f"FleetRun({ends or 'no requests'}; {len(self.reports)} replicas, {self.duration:.1f} s)"

    @property
    def outcomes(self) -> Counter[str]:
        """Requests by outcome."""
        return Counter(str(record.outcome) for record in self.records)

    @property
    def num_attempts(self) -> int:
        """What the service was asked; above the number of requests when clients retry."""
        return sum(record.attempts for record in self.records)

    @property
    def replica_seconds(self) -> float:
        """What is paid for."""
        return sum(report.up_s for report in self.reports)

    @property
    def prefix_hit_rate(self) -> float:
        """Prompt tokens found in a prefix cache / prompt tokens looked up, over all replicas."""
        schedulers = [replica.engine.scheduler for pool in self.pools.values() for replica in pool.replicas]
        queries = sum(scheduler.prefix_queries for scheduler in schedulers)
        return sum(scheduler.prefix_hits for scheduler in schedulers) / queries if queries else 0.0

    @property
    def tier_hits(self) -> Counter[str]:
        """Prompt tokens fetched from each KV tier; the prefix caches' hits include them. Empty: there are no tiers."""
        hits: Counter[str] = Counter()
        for pool in self.pools.values():
            for replica in pool.replicas:
                hits.update(replica.tiers.hits)
        return hits

    @property
    def wasted_tokens(self) -> int:
        """Output tokens written that no client received."""
        written = sum(report.num_output_tokens for report in self.reports)
        return written - sum(record.num_tokens for record in self.records)

    def request_records(self, since: Since = "sent") -> list[RequestRecord]:
        """Rows for `minillm.observe`, with clients' stamps; without requests that were never sent."""
        rows = (record.as_request_record(since) for record in self.records)
        return [row for row in rows if row is not None]

    def summary(self, slo: SLO | None = None, since: Since = "sent") -> Summary:
        """Latencies as clients saw them.

        Args:
            since: "sent" leaves out the time a client held a request back; "intended" counts it.
        """
        return summarize(self.request_records(since), slo)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able data; byte-identical for equal simulations."""
        return {
            "duration_s": self.duration,
            "outcomes": dict(sorted(self.outcomes.items())),
            "attempts": self.num_attempts,
            "replica_s": self.replica_seconds,
            "prefix_hit_rate": self.prefix_hit_rate,
            "wasted_tokens": self.wasted_tokens,
            **({"tier_hits": dict(self.tier_hits)} if self.tier_hits else {}),
            "replicas": [asdict(report) for report in self.reports],
            "requests": [record.row() for record in self.records],
        }
