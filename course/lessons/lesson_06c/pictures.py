"""Pictures and tables of lesson 06c: what a request keeps, what a step reads, and what snapshots cost."""

from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, buttons, choices
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.style import number, seconds, size
from course.lab.svg import Picture
from course.lessons.lesson_06c import run
from course.lessons.lesson_06c.run import CONTEXTS, DTYPE, HYBRID, MODELS, Snapshots, kept, least_s, read

LONG = 100_000
"""Tokens of the table's long request."""
SHORT = tuple(range(0, 6001, 500))
"""Contexts around the one at which states pay."""


def kinds_table() -> Html:
    """Four models: what grows, what doesn't, and what a step reads of a long request."""
    rows = []
    for name, model in MODELS.items():
        fixed = model.fixed_kv_bytes(DTYPE)
        grows = f"{model.growing_layers} of {model.layers} layers, {size(model.kv_bytes_per_token(DTYPE))} a token"
        rows.append(
            (name, grows, size(fixed) if fixed else "nothing", size(kept(model, LONG)), size(read(model, LONG)))
        )
    header = ("model", "what grows", "state per request", f"kept, {LONG:,} tokens", "moved in a step")
    return as_table(header, rows)


KEPT, READ = "a request keeps", "a decode step reads of it"


def draw_bytes(what: str, context: int) -> Picture:
    """One curve for each model, over the context."""
    count = {KEPT: kept, READ: read}[what]
    curves = [Curve(name, CONTEXTS, [count(model, each) / 1e6 for each in CONTEXTS]) for name, model in MODELS.items()]
    told = "; ".join(f"{name} {size(count(model, context))}" for name, model in MODELS.items())
    return draw_chart(
        f"What {what}, at {context:,} tokens of context",
        curves,
        Axis("context, tokens", log=True),
        Axis("MB", log=True),
        [Mark(f"{context:,}", x=context)],
        description=told,
    )


def bytes_explorer() -> Explorer:
    """Kept or read, and how much of it at a context."""
    return Explorer(
        draw_bytes, what=buttons("bytes that", [KEPT, READ]), context=choices("context, tokens", CONTEXTS, 8000)
    )


def reads_table(batch: int, context: int) -> Html:
    """What a step's reads of keys, values and states take at least, on one B200 that reads all of them."""
    rows = []
    for name, model in MODELS.items():
        share = 2 * model.fixed_bytes / read(model, context)
        took = least_s(model, context, batch)
        rows.append((name, size(batch * read(model, context)), seconds(took), f"{share:.0%}" if share else "–"))
    return as_table(("model", "bytes moved in a step", "takes at least", "of which states"), rows)


def reads_explorer() -> Explorer:
    """A batch, and the context of each."""
    return Explorer(
        reads_table,
        batch=choices("batch, requests", (1, 8, 32, 128), 32),
        context=choices("context of each, tokens", CONTEXTS, 8000),
    )


INTERVALS = (16, 64, 256, 512, 1024, 2048, 4096, 8192)


def snapshots_table(interval: int, shared: int, pool_gb: int) -> Html:
    """What a prefix cache of a hybrid model holds, and what a hit saves."""
    cache = Snapshots(MODELS[HYBRID], interval)
    found, each = cache.found(shared), cache.bytes_per_token
    rows = [
        ("a cached token takes", f"{size(each)}, {cache.state_bytes_per_token / each:.0%} of it states"),
        (f"a pool of {pool_gb} GB caches", f"{number(pool_gb * 1e9 / each / 1e3)} thousand tokens"),
        (f"of {shared:,} shared tokens a hit saves", f"{found:,}; {shared - found:,} are computed again"),
    ]
    return as_table(("", f"a snapshot every {interval:,} tokens"), rows)


def snapshots_explorer() -> Explorer:
    """How far apart should a prefix cache's snapshots be?"""
    return Explorer(
        snapshots_table,
        interval=choices("tokens between snapshots", INTERVALS, 512),
        shared=choices("tokens that prompts share", (300, 1000, 3000, 10_000, 50_000), 3000),
        pool_gb=choices("pool, GB", (50, 100, 400), 100),
    )


def draw_even() -> Picture:
    """Where a state takes as much as the keys and values that it replaces: one model, with and without states."""
    model = MODELS[HYBRID]
    even = run.even_tokens(model)
    ways = {"as it is: a state in three layers of four": model, "full attention in every layer": run.all_full(model)}
    curves = [Curve(name, SHORT, [kept(way, each) / 1e6 for each in SHORT]) for name, way in ways.items()]
    replaced = model.layers - model.growing_layers
    told = (
        f"{size(model.fixed_bytes)} of states replace the keys and values of {replaced} layers: "
        f"they break even at {even:,.0f} tokens"
    )
    return draw_chart(
        f"Qwen3.5 397B: the states pay from {even:,.0f} tokens on",
        curves,
        Axis("context, tokens"),
        Axis("a request keeps, MB", low=0),
        [Mark("the chat", x=run.CHAT), Mark(f"even at {even:,.0f}", x=even)],
        description=told,
    )
