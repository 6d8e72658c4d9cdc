"""Sliders: run a policy live; simulate a fleet at 70B."""

from collections.abc import Iterator, Mapping

from course.lab.explorer import Explorer, Shown, buttons, choices, switch
from course.lab.lab import Lab
from course.lab.pictures.timeline import draw_timeline
from course.lab.run import Run
from course.lab.svg import Picture
from course.lessons.lesson_05 import sim_70b, traffic
from course.lessons.lesson_05.causes import mean, of_run
from course.lessons.lesson_05.pictures import draw_policies

FRAME_S = 0.4
"""Between two pictures of a run in progress."""
BUDGETS = (16, 32, 64, 128, 256)


def newcomers_causes(run: Run) -> list[dict[str, float]]:
    """Of each newcomer's TTFT, in order of arrival."""
    names = {view.request_id for view in traffic.newcomers(run)}
    found = of_run(run)
    return [found[row.index] for row in run.rows if row.request_id in names and row.index in found]


def draw_runs(runs: Mapping[str, Run], title: str = "") -> Picture:
    """Policies side by side: newcomers' TTFT by cause, and the gaps of those who write."""
    found = {name: mean(newcomers_causes(run)) for name, run in runs.items()}
    paid = {name: traffic.pause(run) for name, run in runs.items()}
    return draw_policies(found, paid, **({"title": title} if title else {}))


class PolicyBench:
    """Runs policies on the real engine, and keeps every run of a traffic beside the others.

    Args:
        pace: of this machine.
        runs: busy traffic, already played.
    """

    def __init__(self, lab: Lab, pace: traffic.Pace, runs: Mapping[str, Run] | None = None) -> None:
        self.lab, self.pace = lab, pace
        self.runs: dict[str, dict[str, Run]] = {name: {} for name in traffic.PACES}
        self.runs["busy"].update(runs or {})

    def explorer(self) -> Explorer:
        """The bench with its sliders."""
        panel = Explorer(
            self.draw,
            button="Run it",
            arrivals=buttons("arrivals", list(traffic.PACES), "busy"),
            policy=buttons("policy", list(traffic.POLICIES)),
            budget=choices("token budget of 'mixed'", BUDGETS, 32),
        )
        return panel.showing(draw_runs(self.runs["busy"])) if self.runs["busy"] else panel

    def draw(self, arrivals: str, policy: str, budget: int) -> Iterator[Shown]:
        """Play it, live; then show it beside what was played before."""
        fields = traffic.POLICIES[policy]
        if policy == "mixed":
            fields = {**fields, "max_num_batched_tokens": budget}
        name = f"mixed, {budget}" if policy == "mixed" and budget != 32 else policy
        crowd = traffic.company(self.lab, self.pace, traffic.PACES[arrivals])
        session = self.lab.start(crowd, self.lab.config(**fields))
        while not session.wait(FRAME_S):
            yield draw_timeline(session.run(), title=f"{name}, {arrivals}: running …")
        self.runs[arrivals][name] = session.run()
        yield draw_runs(self.runs[arrivals], f"{arrivals}: who waits, and who pays?")


def draw_fleets(fleets: Mapping[str, sim_70b.Fleet], title: str) -> Picture:
    """Policies at 70B: mean TTFT by cause, and the 99th percentile of the gaps."""
    return draw_policies(
        {name: fleet.mean_causes for name, fleet in fleets.items()},
        {name: fleet.itl(99) for name, fleet in fleets.items()},
        who="TTFT at the client, mean, by cause",
        payer="ITL, p99",
        title=title,
    )


def at_70b(qps: float = 12.0) -> Explorer:
    """Every policy on a fleet of four replicas, one after the other, with sliders; pressed once."""

    def draw(qps: float, prefill_replicas: int, rtt_ms: int, new_connection: bool) -> Iterator[Shown]:
        title = f"70B, {sim_70b.REPLICAS} replicas, {qps:g} requests/s: who waits, and who pays?"
        wire = {"rtt_s": rtt_ms / 1000, "handshakes": 2 * new_connection}
        fleets = {}
        for policy in (*sim_70b.POLICIES, sim_70b.APART):
            split = {"prefill_replicas": prefill_replicas} if policy == sim_70b.APART else {}
            fleets[policy] = sim_70b.serve(policy, qps, **wire, **split)
            yield draw_fleets(fleets, title)

    panel = Explorer(
        draw,
        button="Simulate",
        qps=choices("requests per second", (0.5, 4, 8, 12, 16, 24), qps),
        prefill_replicas=choices("'disaggregated': prefill replicas", (1, 2, 3), 2),
        rtt_ms=choices("round trip to the client, ms", (0, 20, 80, 200), 20),
        new_connection=switch("a new TLS connection for each request: two more round trips"),
    )
    panel.press()
    return panel.wait()
