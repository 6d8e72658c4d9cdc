"""Drills about what is seen from where: load tests, streams, proxies."""

from course.lab.drills.drill import Draw, Drill, FollowUp, Rubric
from course.lab.drills.library.units import count, rate, ratio, seconds, size, token_rate, tokens
from course.lab.drills.reading import Numbers


def _load_test(draw: Draw) -> Numbers:
    clients, e2e, arrivals = draw(32, 30, 34), draw(2.0, 1.9, 2.1), draw(24, 22, 26)
    return Numbers(
        {"clients": count(clients), "e2e": seconds(e2e), "arrivals": rate(arrivals), "wait": seconds(40)},
        {
            "offered": rate(clients / e2e),
            "excess": rate(arrivals - clients / e2e),
            "load": ratio(arrivals / (clients / e2e)),
            "minute": count((arrivals - clients / e2e) * 60),
            "after": seconds((arrivals - clients / e2e) * 60 / (clients / e2e)),
            "in_flight": count(arrivals * e2e),
        },
    )


def _choppy(draw: Draw) -> Numbers:
    itl, event, buffer = draw(0.030, 0.028, 0.032), draw(160, 150, 170), draw(4096, 4000, 4200)
    events = buffer / event
    return Numbers(
        {"itl": seconds(itl), "event": size(event), "buffer": size(buffer), "output": tokens(200)},
        {
            "events": count(events),
            "gap": seconds(events * itl),
            "speed": token_rate(1 / itl),
            "share": ratio(1 / events),
            "total": seconds(200 * itl),
            "bursts": count(200 / events),
            "later": seconds((events - 1) * itl),
        },
    )


DRILLS = (
    Drill(
        "load-test-lied",
        "The load test that told lies",
        5,
        "queue, measuring",
        _load_test,
        Rubric(
            diagnosis=(
                "coordinated + load|queue|because|client",
                "client + little|load|because|coordinated",
                "load|little + derived",
                "coordinated + little|derived",
            ),
            mechanism=(
                "~ load|little|coordinated|client|capacity|queue + derived",
                "~ coordinated + because + queue|load|client",
            ),
            apart=(
                "server_side + client",
                "!server_side",
                "!queue",
                "coordinated + split|depend|queue",
                "capacity + load|little|coordinated",
            ),
            secondary=(
                (
                    "queue|capacity|percentile|prompt_length|warm|ttft|hit_rate|shared_prefix|spike + because|"
                    "derived|trouble|secondary|depend"
                ),
            ),
            secondary_why=("~ queue|capacity|percentile|prompt_length|hit_rate|load + because|derived",),
            moves={
                "coordinated": "load|queue|percentile|client|ttft",
                "measure": "load|queue|percentile|client|ttft|capacity|coordinated",
                "admission": "queue|capacity|load|ttft",
                "replicas": "capacity|queue|load|cost",
                "monitor": "queue|ttft|client|load",
                "seats": "queue|kv",
                "fallback": "spike|capacity",
            },
            unknowns=(
                "load|client|coordinated|prompt_length|percentile|queue|output_length|hit_rate|shared_prefix|"
                "capacity|ttft|spike|server_side|network|retrieval|admission"
            ),
            beyond=(
                (
                    "derived.offered|derived.load|derived.minute|derived.after|derived.in_flight + impossible|"
                    "capacity|queue|because|load|coordinated|little"
                ),
            ),
        ),
    ),
    Drill(
        "choppy-stream",
        "Streaming feels choppy, the server says 30 ms",
        5,
        "stream",
        _choppy,
        Rubric(
            diagnosis=(
                "proxy + stream|because|client|itl|trouble",
                "stream|client|itl + proxy|network",
                "proxy + derived",
            ),
            mechanism=("~ proxy|stream|itl|client + derived", "~ proxy + because + client|itl"),
            apart=(
                "client + server_side",
                "server_side + itl + !trouble|because",
                "!decode|!itl|!server_side",
                "percentile + itl",
                "split",
            ),
            secondary=(
                "percentile|ttft|client|network|itl|monitor + because|derived|trouble|secondary|effect|decides",
            ),
            secondary_why=("~ percentile|ttft|client|network|monitor|itl + because|derived|decides",),
            moves={
                "unbuffer": "proxy|stream|itl|client|ttft|network|percentile",
                "measure": "client|server_side|itl|stream|proxy",
                "monitor": "client|itl|percentile|stream",
                "batching": "stream|cost|itl",
                "proxy": "client|stream|itl|ttft",
                "network": "client|stream|ttft",
            },
            unknowns="client|proxy|server_side|network|percentile|itl|stream|measure|ttft|decode|batching|load",
            beyond=(
                (
                    "derived.events|derived.gap|derived.later|derived.bursts + proxy|itl|because|client|stream|"
                    "impossible|ttft"
                ),
            ),
            follow_ups=(FollowUp("proxy", "How do you prove it is the proxy within five minutes?"),),
        ),
    ),
)
