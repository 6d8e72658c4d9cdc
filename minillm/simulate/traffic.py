"""Traffic by name, for the command line: seven made-up kinds, and two formats of recorded traces."""

from pathlib import Path

from minillm.core.errors import TraceError, WorkloadError
from minillm.simulate.arrivals import Arrivals, Gamma, Poisson
from minillm.simulate.lengths import Fixed
from minillm.simulate.traces import load_azure, load_mooncake
from minillm.simulate.workload import Traffic, Workload, make_workload, mean_turns
from minillm.simulate.workload_kinds import (
    AZURE_CHAT,
    AZURE_CODE,
    AgentLoop,
    Independent,
    Rag,
    Sessions,
    SharedPrefix,
)

KINDS: dict[str, Traffic] = {
    "chat": AZURE_CHAT,
    "code": AZURE_CODE,
    "rag": Rag(),
    "agents": AgentLoop(),
    "tenants": SharedPrefix(tenants=8, skew=1.0),
    "sessions": Sessions(),
}
"""Besides "fixed"."""
LOADERS = {"azure": load_azure, "mooncake": load_mooncake}
SUFFIXES = {".csv": "azure", ".jsonl": "mooncake"}
SLOWEST = 1e-6
"""Requests per second: one in eleven days."""
DEFAULT_PROMPT, DEFAULT_OUTPUT = 1000, 200
"""Tokens, of "fixed" traffic."""


def find_traffic(name: str, prompt_tokens: int | None = None, output_tokens: int | None = None) -> Traffic:
    """A kind of traffic.

    Args:
        prompt_tokens, output_tokens: of every request of "fixed"; None = DEFAULT_PROMPT, DEFAULT_OUTPUT.
    Raises:
        WorkloadError: no such kind, or one that has lengths of its own.
    """
    if name == "fixed":
        prompt, output = prompt_tokens or DEFAULT_PROMPT, output_tokens or DEFAULT_OUTPUT
        return Independent(prompt=Fixed(tokens=prompt), output=Fixed(tokens=output))
    if name not in KINDS:
        raise WorkloadError(f"no traffic {name!r}: choose from fixed, {', '.join(KINDS)}")
    if prompt_tokens is not None or output_tokens is not None:
        raise WorkloadError(f"{name} has lengths of its own: --prompt-tokens and --output-tokens go with fixed traffic")
    return KINDS[name]


def find_arrivals(name: str, rate: float, cv: float | None = None) -> Arrivals:
    """How requests are spread: "poisson", or "gamma" with a coefficient of variation (1 unless said).

    Raises:
        WorkloadError: a rate that is not above zero, a cv out of range, or one given to a Poisson process.
    """
    if not rate >= SLOWEST:
        raise WorkloadError(f"a rate is at least {SLOWEST:g} requests per second, not {rate:g}")
    if name == "gamma":
        return Gamma(rate=rate, cv=1.0 if cv is None else cv)
    if cv not in (None, 1.0):
        raise WorkloadError(f"a Poisson process has cv 1, not {cv:g}: choose --arrival gamma")
    return Poisson(rate=rate)


def made_up_workload(
    traffic: Traffic, *, qps: float, arrival: str, cv: float | None, num_requests: int, seed: int
) -> Workload:
    """About `num_requests` requests, at `qps` of them per second; whole conversations, where it has any."""
    turns = mean_turns(traffic, seed)
    arrivals = find_arrivals(arrival, qps / turns, cv)
    return make_workload(traffic, arrivals, num_requests=max(round(num_requests / turns), 1), seed=seed)


def load_trace(path: Path, trace_format: str | None = None, limit: int | None = None) -> Workload:
    """A recorded trace.

    Args:
        trace_format: "azure" or "mooncake"; None = as the file's name ends.
        limit: the first so many requests; None = all.
    Raises:
        TraceError: the file cannot be read, is empty, or its format is not known.
    """
    chosen = trace_format or SUFFIXES.get(path.suffix.lower())
    if chosen not in LOADERS:
        raise TraceError(f"{path}: say its format with --trace-format: {' or '.join(LOADERS)}")
    try:
        workload = LOADERS[chosen](path, limit=limit)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read {path} as a trace of {chosen}: {error}") from None
    if not len(workload):
        raise TraceError(f"{path} holds no requests")
    return workload
