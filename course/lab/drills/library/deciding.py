"""Drills about promises: which limits a product needs, and what shows whether they are kept."""

from course.lab.drills.drill import Draw, Drill, FollowUp, Rubric, Trap
from course.lab.drills.library.units import count, rate, ratio, seconds, tokens
from course.lab.drills.reading import Numbers

ONE_NUMBER = Trap(
    "percentile|e2e|monitor + e2e",
    ("ttft|itl|split|!e2e",),
    "A panel of E2E alone hides which phase is slow: TTFT and ITL apart, by prompt length.",
    price=0.15,
)


def _autocomplete(draw: Draw) -> Numbers:
    pause, network, output, step = (
        draw(0.3, 0.28, 0.32),
        draw(0.06, 0.05, 0.07),
        draw(24, 20, 28),
        draw(0.012, 0.011, 0.013),
    )
    prefill, drop = draw(0.04, 0.035, 0.045), draw(0.7, 0.65, 0.75)
    return Numbers(
        {
            "pause": seconds(pause),
            "network": seconds(network),
            "output": tokens(output),
            "step": seconds(step),
            "prefill": seconds(prefill),
            "abandoned": ratio(drop),
        },
        {
            "left": seconds(pause - network),
            "decode": seconds(output * step),
            "e2e": seconds(network + prefill + output * step),
            "over": ratio((network + prefill + output * step) / pause),
            "allowed": tokens((pause - network - prefill) / step),
            "needed": seconds((pause - network - prefill) / output),
            "speedup": ratio(output * step / (pause - network - prefill)),
            "useful": ratio(1 - drop),
        },
    )


def _dashboard(draw: Draw) -> Numbers:
    long, share, ttft_short, ttft_long = (
        8000,
        draw(0.03, 0.025, 0.035),
        draw(0.3, 0.28, 0.32),
        draw(6.0, 5.5, 6.5),
    )
    qps, e2e = draw(40, 36, 44), draw(9.0, 8.5, 9.5)
    return Numbers(
        {
            "share": ratio(share),
            "short": seconds(ttft_short),
            "long": seconds(ttft_long),
            "qps": rate(qps),
            "e2e": seconds(e2e),
            "prompt": tokens(long),
        },
        {
            "mean": seconds(share * ttft_long + (1 - share) * ttft_short),
            "hit": rate(share * qps),
            "a_minute": count(share * qps * 60),
            "ratio": ratio(ttft_long / ttft_short),
            "in_flight": count(qps * e2e),
        },
    )


DRILLS = (
    Drill(
        "slo-autocomplete",
        "An SLO for autocomplete",
        4,
        "all five",
        _autocomplete,
        Rubric(
            diagnosis=(
                "e2e + because|trouble|derived|itl|ttft|decode",
                "ttft + itl|decode|e2e",
                "decode + derived|output_length|trouble",
            ),
            mechanism=(
                "decode|e2e|ttft|itl|network|output_length|speculation + derived",
                "~ e2e|decode + because + number",
            ),
            apart=("network + prefill|decode", "ttft + itl|e2e", "split", "!ttft|!itl", "client + server_side"),
            secondary=(
                (
                    "network|admission|client|goodput|cost|load|queue + because|derived|trouble|secondary|depend|"
                    "given|number"
                ),
            ),
            secondary_why=("~ network|client|goodput|cost|load|queue|admission + because|derived|given|depend",),
            moves={
                "output_limit": "decode|e2e|derived|output_length",
                "speculation": "decode|itl|e2e",
                "smaller_model": "decode|itl|prefill|quality",
                "prefix_cache": "prefill|ttft",
                "network": "ttft|client|e2e",
                "admission": "queue|client|load|cost|goodput",
                "quantization": "decode|quality",
                "monitor": "percentile|goodput|ttft|itl|e2e",
                "lanes": "queue|ttft|itl",
                "seats": "itl|queue|decode",
            },
            unknowns=(
                "output_length|network|percentile|load|client|quality|acceptance|prompt_length|shared_prefix|"
                "hit_rate|e2e|cost|goodput|spike|ttft|queue"
            ),
            beyond=(
                (
                    "derived.over|derived.e2e|derived.allowed|derived.needed|derived.speedup + impossible|decode|e2e|"
                    "because|itl|output_length|speculation"
                ),
            ),
            follow_ups=(FollowUp("percentile", "At which percentile, over which window, and measured where?", True),),
        ),
    ),
    Drill(
        "dashboard",
        "What would you put on the dashboard?",
        4,
        "all five",
        _dashboard,
        Rubric(
            diagnosis=("ttft + itl", "split + queue|ttft", "queue + prefill + decode|itl"),
            mechanism=(
                "percentile|prompt_length|ttft|e2e|queue|little|load + derived",
                "~ percentile|prompt_length|e2e|gpu_util + because",
                "e2e + because",
            ),
            apart=(
                "!gpu_util|!e2e|!percentile",
                "client + server_side",
                "percentile + prompt_length",
                "gpu_util + trouble|!trouble|because",
            ),
            secondary=(
                (
                    "client|kv|preemption|hit_rate|acceptance|gpu_util|prompt_length|stream + because|trouble|"
                    "secondary|depend|effect|decides|monitor"
                ),
            ),
            secondary_why=("~ client|kv|preemption|hit_rate|gpu_util|prompt_length + because|derived|decides|depend",),
            moves={
                "monitor": "queue|ttft|itl|kv|percentile|prompt_length|goodput",
                "measure": "queue|ttft|itl|client|prefill|kv|percentile",
                "kv": "queue|preemption|memory|capacity",
                "hit_rate": "prefill|ttft",
                "preemption": "kv|queue",
                "goodput": "ttft|itl|capacity",
                "queue": "ttft|capacity|prefill|load",
            },
            unknowns=(
                "ttft|itl|queue|kv|percentile|prompt_length|client|goodput|load|preemption|hit_rate|gpu_util|cost|"
                "retrieval|output_length|acceptance"
            ),
            beyond=(
                (
                    "derived.mean|derived.hit|derived.a_minute|derived.ratio|derived.in_flight + impossible|"
                    "percentile|prompt_length|because|ttft|little|load"
                ),
            ),
            traps=(ONE_NUMBER,),
        ),
    ),
)
