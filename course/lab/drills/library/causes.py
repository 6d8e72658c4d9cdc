"""Drills in which the symptom is known, and the cause has to be explained."""

from course.lab.drills.drill import Draw, Drill, FollowUp, Rubric, Trap
from course.lab.drills.library.units import count, ratio, seconds, token_rate, tokens
from course.lab.drills.reading import Numbers


def _rag(draw: Draw) -> Numbers:
    long, short, rate_of = draw(12_000, 10_000, 14_000), 600, draw(10_000, 9_000, 11_000)
    itl, spike, share = 0.035, draw(1.3, 1.2, 1.4), draw(0.05, 0.04, 0.06)
    return Numbers(
        {
            "long": tokens(long),
            "short": tokens(short),
            "speed": token_rate(rate_of),
            "itl": seconds(itl),
            "spike": seconds(spike),
            "share": ratio(share),
            "chunk": tokens(1024),
        },
        {
            "stall": seconds(long / rate_of),
            "chunks": count(long / 1024),
            "chunk_step": seconds(1024 / rate_of + itl),
            "load": ratio(share * long / (share * long + (1 - share) * short)),
            "times": ratio(spike / itl),
            "mean": tokens(share * long + (1 - share) * short),
        },
    )


def _quantized_in_vain(draw: Draw) -> Numbers:
    wait, prefill, output = draw(4.8, 5.2, 4.4), draw(0.18, 0.2, 0.16), draw(200, 220, 180)
    itl, faster, before, after = draw(0.030, 0.032, 0.028), 0.8, 800, draw(2400, 2600, 2200)
    e2e = wait + prefill + itl * output
    return Numbers(
        {
            "wait": seconds(wait),
            "prefill": seconds(prefill),
            "itl": seconds(itl),
            "output": tokens(output),
            "seats": count(96),
            "before": tokens(before),
            "after": tokens(after),
            "gain": ratio(1 - faster),
        },
        {
            "decode": seconds(itl * output),
            "e2e": seconds(e2e),
            "saved": seconds((1 - faster) * itl * output),
            "best": ratio((1 - faster) * itl * output / e2e),
            "wait_share": ratio(wait / e2e),
            "growth": ratio(after / before),
            "right_seats": count(96 * before / after),
            "held_before": tokens(96 * before),
            "held_after": tokens(96 * after),
        },
    )


FEWER_SEATS = Trap(
    "seats + effect + queue",
    ("depend|!seats|!effect|!queue|preemption|kv|capacity",),
    "Fewer seats alone let nobody start sooner: say what they free, or what is short instead, KV room or prefill.",
)

DRILLS = (
    Drill(
        "rag-broke-chat",
        "The RAG launch that broke chat",
        6,
        "prefill, decode",
        _rag,
        Rubric(
            diagnosis=(
                "prefill|prompt_length + straggler|itl|decode",
                "~ prefill|prompt_length + because + itl|decode|straggler",
            ),
            mechanism=(
                "prefill|straggler|prompt_length|itl|decode + derived",
                "~ prefill|prompt_length + straggler + because + number",
            ),
            apart=(
                "!decode|!bandwidth|!queue|!quantization|!replicas",
                "percentile + itl|ttft",
                "split + prompt_length|retrieval|lanes|itl|prefill",
            ),
            secondary=(
                "ttft|queue|kv|shared_prefix|load|hit_rate|retrieval + secondary|because|trouble|derived",
                "derived.load|derived.mean",
            ),
            secondary_why=("~ ttft|queue|kv|load|shared_prefix|hit_rate|prefix_cache + because|derived|depend",),
            moves={
                "chunking": "prefill|itl|straggler|decode",
                "lanes": "prefill|itl|decode|ttft|straggler",
                "prompt_limit": "prefill|ttft",
                "prefix_cache": "prefill|ttft",
                "admission": "queue|prefill",
                "routing": "prefill|ttft|itl",
                "replicas": "queue|capacity|prefill",
            },
            unknowns=(
                "prompt_length|chunking|percentile|shared_prefix|hit_rate|load|ttft|itl|retrieval|queue|"
                "output_length|kv"
            ),
            beyond=(
                "derived.load|derived.mean + load|capacity|prefill|because|prompt_length",
                "~ derived.stall + straggler|itl|because",
            ),
            follow_ups=(FollowUp("chunking", "What does the chunk cost the long prompt itself?"),),
        ),
    ),
    Drill(
        "quantized-in-vain",
        "Three months of quantization won nothing: why?",
        6,
        "queue, KV",
        _quantized_in_vain,
        Rubric(
            diagnosis=("queue + trouble|because|percentile", "queue + given|derived"),
            mechanism=(
                "queue|quantization|decode|prefill|seats|e2e + derived",
                "~ seats + prompt_length + because + kv|queue",
            ),
            apart=(
                "!quantization",
                "quantization + decode|prefill + because|depend|derived",
                "split + queue",
                "~ queue + prefill + given",
            ),
            secondary=(
                "kv|prompt_length + because|trouble|preemption",
                "derived.growth|derived.right_seats|derived.held_after",
                "monitor|e2e + because|secondary|trouble",
            ),
            secondary_why=("~ kv|prompt_length|capacity + derived|preemption|because|memory",),
            moves={
                "admission": "queue|capacity|ttft",
                "prefix_cache": "prefill|capacity|kv",
                "seats": "kv|preemption|itl",
                "chunking": "prefill|itl|ttft|queue",
                "replicas": "queue|capacity",
                "measure": "queue|ttft|prefill",
                "monitor": "queue|ttft|itl",
                "prompt_limit": "prefill|kv|queue",
                "kv_quant": "kv|memory|queue",
            },
            unknowns="queue|kv|preemption|prompt_length|seats|load|capacity|ttft|percentile|output_length|quality|little",
            beyond=(
                "derived.best|derived.saved + quantization|decode|e2e|because|impossible",
                "derived.growth|derived.right_seats|derived.held_after + seats|kv",
            ),
            traps=(FEWER_SEATS,),
            hints={
                "evidence": "Work out the most that quantization could have won: its gain applies to decoding only."
            },
        ),
    ),
)
