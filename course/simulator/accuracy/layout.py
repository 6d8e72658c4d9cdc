"""What a row says about accelerators: how many there are, and how attention and experts are spread over them.

The table writes InferenceX's runs in its own way, which `machine_of` undoes. Of many runs it has a second row in plain
words (with the same TTFT and TPOT), and most names end in the plain words too (`..._tp8_ep8_...`): both agree with it.
"""

from dataclasses import dataclass, fields, replace

from course.simulator.accuracy.engines import shape_of
from course.simulator.accuracy.points import Point, Refusal, Ways
from course.simulator.accuracy.recipes import NO_LIMITS, Recipe, RecipeLimits, Servers, always_drafts, recipes_of

NO_LAYOUT = "parallelism: the sizes contradict each other"
NO_PIPELINE = "pipeline stages: the cost of unequal ones is not known"
NO_WORKERS = "disaggregated: how many servers each pool has is not stated, and no published recipe has this point"
MANY_RECIPES = "disaggregated: how many servers each pool has is not stated, and published recipes differ"
DRAFTS = "drafts tokens for itself, says the published recipe, and how many pass is not stated"
MAY_DRAFT = "may draft tokens for itself: the published recipe has the point with and without"


@dataclass(frozen=True, slots=True)
class ServerShape:
    """One server: `dp` ranks with requests of their own, each of which has `tp` accelerators for attention. Experts are
    spread over all."""

    tp: int
    dp: int = 1
    expert_groups: int = 1
    """Groups of accelerators with experts of their own; 1 = every accelerator has slices of all."""

    @property
    def gpus(self) -> int:
        return self.tp * self.dp


@dataclass(frozen=True, slots=True)
class ServingLayout:
    """Everything that serves a row's requests."""

    server: ServerShape
    """Each server's; disaggregated, that of those that write answers."""
    servers: int = 1
    prefill: ServerShape | None = None
    """None: servers compute prompts themselves."""
    prefill_servers: int = 0
    limits: RecipeLimits = NO_LIMITS
    """What the recipe lets ranks of two pools hold."""

    @property
    def ranks(self) -> int:
        """Ranks that requests are spread over."""
        return self.servers * self.server.dp

    @property
    def sizes(self) -> tuple[int, ...]:
        """Servers of each pool, and accelerators of each server."""
        prefill_gpus = self.prefill.gpus if self.prefill else 0
        return self.prefill_servers, prefill_gpus, self.servers, self.server.gpus


def machine_of(ways: Ways) -> ServerShape:
    """The server that a row's sizes stand for:

    - tp t, experts in slices or in e groups: t accelerators. Dense models have moe_tp and moe_ep 1 (or 0)
    - tp t, dp d: t x d accelerators, which have to be moe_tp x moe_ep as well. Where dp is left out, it follows from
      that: tp 1, moe_tp 4 are 4 ranks

    and, as InferenceX's rows with experts in groups are written (they state dp):

    - tp k x k, moe_tp k, moe_ep k: k accelerators, experts in k groups, attention in slices (64 = 8 x 8 are 8 GPUs)
    - dp k x k, the same: k accelerators, experts in k groups, attention data-parallel
    - tp k, dp k, moe_ep k x k: k accelerators, experts in k groups, attention in slices, as vLLM's rows have it

    Raises:
        Refusal: pipeline stages, or sizes that are none of these.
    """
    if (ways.pp or 1) > 1:
        raise Refusal(NO_PIPELINE)
    tp, moe_tp, moe_ep = ways.tp or 1, ways.moe_tp or 1, ways.moe_ep or 1
    if ways.dp is not None and moe_tp == moe_ep > 1 and tp * ways.dp == moe_tp * moe_ep:
        return ServerShape(1, moe_ep, moe_ep) if ways.dp > 1 else ServerShape(moe_ep, 1, moe_ep)
    if ways.dp is not None and tp == ways.dp > 1 and moe_ep == tp * tp:
        return ServerShape(tp, 1, tp)
    dp = ways.dp or max(moe_tp * moe_ep // tp, 1)
    if moe_tp * moe_ep not in (1, tp * dp):
        raise Refusal(NO_LAYOUT)
    return ServerShape(tp, dp, moe_ep)


def deployment_of(point: Point, shape: str, card: str) -> ServingLayout:
    """Everything that serves a row's requests. Where the row leaves out how many servers there are, a published recipe
    of that point says it; likewise where it states the sum of all accelerators (as tp, in rows of NVL72).

    Args:
        shape, card: the model's and the accelerator's short names.
    Raises:
        Refusal: it can't be told, or it can't be simulated.
    """
    layout = _layout(point, recipes := recipes_of(point, shape, card), card)
    return replace(layout, limits=_limits(point, layout, recipes))


def _layout(point: Point, recipes: list[Recipe], card: str) -> ServingLayout:
    if point.server is not None:
        if _is_sum(point.server, point.server, card):
            return _from_recipes(recipes, point.server, point.server)
        _check_drafts(point, point.server, recipes)
        return ServingLayout(_as_published(machine_of(point.server), recipes))
    assert point.prefill is not None and point.decode is not None, "a row has a server or two pools"
    if point.prefill.workers is None or point.decode.workers is None:
        return _from_recipes(recipes, point.prefill, point.decode)
    prefill, decode = machine_of(point.prefill), machine_of(point.decode)
    as_stated = ServingLayout(decode, point.decode.workers, prefill, point.prefill.workers)
    return _corrected(as_stated, recipes)


def _as_published(stated: ServerShape, recipes: list[Recipe]) -> ServerShape:
    """The server with data-parallel attention, if the one recipe with as many accelerators and groups of experts has
    it: vLLM's rows are written alike with and without."""
    servers = {recipe.decode for recipe in recipes if recipe.prefill is None and not recipe.drafts}
    like = [each for each in servers if (each.gpus, each.expert_groups) == (stated.gpus, stated.expert_groups)]
    return _machine(like[0]) if len(like) == 1 and like[0].data_parallel else stated


def _corrected(stated: ServingLayout, recipes: list[Recipe]) -> ServingLayout:
    """The pools as the one recipe with as many servers of the same sizes has them. Rows of 2025 call every server's
    accelerators data-parallel ranks, those of servers with tensor parallelism too."""
    found = {
        layout
        for recipe in recipes
        if recipe.prefill is not None and not recipe.drafts
        for layout in [_pools(recipe.prefill, recipe.decode)]
        if layout.sizes == stated.sizes
    }
    return found.pop() if len(found) == 1 else stated


def _limits(point: Point, layout: ServingLayout, recipes: list[Recipe]) -> RecipeLimits:
    """The limits of the recipes with these pools, for this version of the engine if there are some, else of any; the
    lowest, where they differ: waiting is all that tells them apart."""
    like = [recipe for recipe in recipes if recipe.prefill is not None and not recipe.drafts]
    like = [recipe for recipe in like if recipe.prefill and _pools(recipe.prefill, recipe.decode).sizes == layout.sizes]
    own = [recipe.limits for recipe in like if recipe.version == point.version]

    def lowest(name: str) -> int | None:
        stated = [limit for limits in own if (limit := getattr(limits, name))]
        stated = stated or [limit for recipe in like if (limit := getattr(recipe.limits, name))]
        return min(stated, default=None)

    return RecipeLimits(*map(lowest, (each.name for each in fields(RecipeLimits))))


def _is_sum(prefill: Ways, decode: Ways, card: str) -> bool:
    """Whether tp is the number of all accelerators of both pools."""
    return card in ("gb200", "gb300") and prefill == decode and (decode.moe_tp or 1) == (decode.tp or 1) > 8


def _from_recipes(recipes: list[Recipe], prefill: Ways, decode: Ways) -> ServingLayout:
    """The pools of the one recipe that has a row's accelerators."""
    sizes = prefill.tp or 1, decode.tp or 1

    def fits(recipe: Recipe) -> bool:
        if recipe.prefill is None:
            return False
        all_gpus = recipe.prefill.count * recipe.prefill.gpus + recipe.decode.count * recipe.decode.gpus
        return sizes in ((recipe.prefill.gpus, recipe.decode.gpus), (all_gpus, all_gpus), (1, 1))

    found = [recipe for recipe in recipes if fits(recipe)]
    if not found:
        raise Refusal(NO_WORKERS)
    _refuse_drafts(found)
    layouts = {_pools(recipe.prefill, recipe.decode) for recipe in found if recipe.prefill is not None}
    if len(layouts) > 1:
        raise Refusal(MANY_RECIPES)
    return layouts.pop()


def _pools(prefill: Servers, decode: Servers) -> ServingLayout:
    return ServingLayout(_machine(decode), decode.count, _machine(prefill), prefill.count)


def _machine(servers: Servers) -> ServerShape:
    if servers.data_parallel:
        return ServerShape(1, servers.gpus, servers.expert_groups)
    return ServerShape(servers.gpus, 1, servers.expert_groups)


def _check_drafts(point: Point, ways: Ways, recipes: list[Recipe]) -> None:
    """Refuse a row that may be of a model that drafts. Those whose names end in `_cfg` and a number come from a table
    that leaves such runs out; the others don't say, so that the recipe for this version of the engine has to."""
    if "_cfg" in point.name:
        return
    if always_drafts(shape_of(point.model), point.backend, point.version):
        raise Refusal(DRAFTS)
    machine = machine_of(ways)
    servers = Servers(1, machine.gpus, machine.expert_groups, machine.dp > 1)
    found = [recipe for recipe in recipes if recipe.prefill is None and recipe.decode == servers]
    _refuse_drafts([recipe for recipe in found if recipe.version == point.version])


def _refuse_drafts(recipes: list[Recipe]) -> None:
    drafts = {recipe.drafts for recipe in recipes}
    if drafts == {True}:
        raise Refusal(DRAFTS)
    if True in drafts:
        raise Refusal(MAY_DRAFT)
