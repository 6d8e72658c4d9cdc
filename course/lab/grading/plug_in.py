"""A learner's parts inside the real engine: a scheduler step, a block pool, a sampler ... of theirs serves the model.

Every part runs beside the rule that it must keep. When it breaks it, or raises, that is noted, the engine's own part
takes over for the rest of the run, and nobody waits for ever. (A part that loops for ever does hang: check it first.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor

from course.lab.dashboard import render
from course.lab.display import Html
from course.lab.grading.blame import message_of, shown
from course.lab.grading.plug_in_attention import attend_with
from course.lab.lab import Lab
from course.lab.run import Run
from course.lab.workloads import Workload
from minillm import Engine, EngineConfig
from minillm.core.batch import ScheduledBatch
from minillm.core.block_manager import KVCacheManager
from minillm.core.block_pool import BlockPool, FreeBlocks
from minillm.core.request import Draft, Request
from minillm.core.scheduler import Scheduler, Step
from minillm.frontend.engine_thread import EngineThread
from minillm.policies.config import SpeculativeConfig
from minillm.runner.rows import DraftPosition, Row
from minillm.runner.sampler import Sampler, on_device, probabilities
from minillm.speculation.base import DraftRequest, NoProposer

MOST_PREEMPTIONS = 50
"""For each request that arrived. Who chooses victims so that more are needed keeps two from ever getting on."""
USUAL_DRAFT = SpeculativeConfig(method="ngram", k=4, min_output_tokens=1, acceptance_floor=0)
"""With a proposer of the learner's, and no word about speculation: every request drafts, worth it or not."""


@dataclass(frozen=True)
class Seen:
    """What a learner's scheduler sees of a request."""

    request_id: str
    num_tokens: int
    num_computed_tokens: int


@dataclass(frozen=True)
class SeenHolder(Seen):
    """What a learner's choice of a victim sees of a request."""

    arrival: int
    blocks: list[int]


@dataclass(frozen=True)
class Parts:
    """A learner's parts; None = the engine's own. The exercises say what each is called with."""

    scheduler_step: Callable[..., Any] | None = None
    """(running, waiting, token_budget, max_num_seqs) -> tokens by request id; exercise continuous-batching-step"""
    pick_victim: Callable[[list[SeenHolder], set[str]], Any] | None = None
    """(running, ids of those in this step already) -> the request to preempt; exercise preemption"""
    block_pool: Callable[[int], Any] | None = None
    """A class; exercise block-pool. Prefix caching is off with it."""
    attention: Callable[..., Any] | None = None
    """In NumPy; exercise paged-attention. Slow: give it short prompts."""
    block_names: Callable[[list[int], int, tuple[str, ...]], Sequence[Any]] | None = None
    """(token ids, block size, extra keys) -> a name for each full block; exercise prefix-hash-chain"""
    eviction_order: Callable[[], Any] | None = None
    """A class; exercise lru-eviction. Not together with a block pool."""
    sampler: Callable[..., Any] | None = None
    """(target, proposal, drafts, rng) -> tokens; exercise rejection-sampler. For drafts that were drawn."""
    proposer: Callable[[list[int], int], Sequence[int]] | None = None
    """(known token ids, k) -> at most k token ids that may come next."""


class Watch:
    """Asks a learner's part as long as it keeps the rules.

    Args:
        name: of the part, for the note.
    """

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.is_trusted = True
        self._notes = notes

    def ask(self, part: Callable[[], Any], instead: Callable[[], Any]) -> Any:
        """What the part says, or what the engine's own says once it has failed. A ValueError names a broken rule."""
        if self.is_trusted:
            try:
                return part()
            except Exception as error:
                self.distrust(f"{type(error).__name__}: {message_of(error)}")
        return instead()

    def distrust(self, why: str) -> None:
        self.is_trusted = False
        self._notes.append(f"your {self.name} was replaced by the engine's own: {why}")


class OpenScheduler(Scheduler):
    """Gives each request the tokens that a learner's plan names, and preempts whom a learner picks; blocks and queues
    stay the engine's."""

    def __init__(self, parts: Parts, notes: list[str], like: Engine) -> None:
        super().__init__(like.config, like.runner.num_kv_blocks, like.runner.num_host_blocks, like.context_limit)
        self._plan_step, self._watch = parts.scheduler_step, Watch("scheduler step", notes)
        self._pick_victim, self._victims = parts.pick_victim, Watch("choice of a victim", notes)
        self._plan: dict[str, int] | None = None

    def schedule(self, now: float) -> ScheduledBatch:
        self._plan = self._watch.ask(self._make_plan, lambda: None) if self._plan_step else None
        batch = super().schedule(now)
        idle = not (batch.requests or batch.preempted or batch.timed_out)
        if idle and self._plan is not None and (self.running or self.waiting):
            self._watch.distrust(f"step {self.num_steps}: it gave nobody anything, and there is work")
            self._plan = None
            return super().schedule(now)
        return batch

    def _make_plan(self) -> dict[str, int]:
        running = [Seen(r.request_id, r.num_tokens, r.num_computed_tokens) for r in self.running]
        waiting = [Seen(r.request_id, r.num_tokens, self._computed(r)) for r in self.waiting]
        budget = self.config.max_num_batched_tokens
        found = dict(self._plan_step(running, waiting, budget, self.config.max_num_seqs))
        plan = {name: int(tokens) for name, tokens in found.items()}
        unknown = plan.keys() - {seen.request_id for seen in [*running, *waiting]}
        if unknown:
            raise ValueError(f"it names {shown(unknown.pop())}, which is no request")
        if sum(plan.values()) > budget:
            raise ValueError(f"it spends {sum(plan.values())} tokens, and the budget is {budget}")
        return plan

    def _computed(self, request: Request) -> int:
        if request.request_id in self.swap:
            return request.num_computed_tokens
        return len(self.kv.find_prefix(request)) * self.config.block_size

    def _tokens_for(self, request: Request, start: int, step: Step) -> int:
        ours = super()._tokens_for(request, start, step)
        if self._plan is None or ours == 0:
            return ours
        return min(self._plan.get(request.request_id, 0), request.num_tokens - start, step.budget)

    def _victim(self, asker: Request, step: Step) -> Request:
        ours = super()._victim(asker, step)
        return self._victims.ask(lambda: self._their_victim(step), lambda: ours) if self._pick_victim else ours

    def _their_victim(self, step: Step) -> Request:
        """Never one of this step, as under fcfs; with priorities the engine itself may take one out of it again."""
        if self.num_preemptions > MOST_PREEMPTIONS * self.num_arrivals:
            raise ValueError(f"{self.num_preemptions} preemptions: requests take each other's blocks and do not get on")
        planned = {scheduled.request.request_id for scheduled in step.requests}
        running = [
            SeenHolder(r.request_id, r.num_tokens, r.num_computed_tokens, r.arrival_index, list(self.kv.held_blocks(r)))
            for r in self.running
        ]
        found = getattr(self._pick_victim(running, set(planned)), "request_id", None)
        if found in planned:
            raise ValueError(f"it picked {found}, which is in this step already")
        candidates = {request.request_id: request for request in self.running}
        if found not in candidates:
            raise ValueError(f"it picked {shown(found)}, which is no running request")
        return candidates[found]


class SharedPool(BlockPool):
    """A learner's pool hands out the blocks; the engine keeps its own books beside it, and compares."""

    def __init__(self, num_blocks: int, theirs: Any, watch: Watch) -> None:
        super().__init__(num_blocks)
        self.free: dict[int, None] = dict.fromkeys(range(num_blocks))
        self._theirs, self._watch = theirs, watch

    def allocate(self, count: int) -> list[int]:
        if count > len(self.free):
            raise IndexError(f"{count} blocks wanted, {len(self.free)} free")
        taken = self._watch.ask(lambda: self._from_theirs(count), lambda: list(islice(self.free, count)))
        for block_id in taken:
            del self.free[block_id]
            self.ref_counts[block_id] = 1
        return taken

    def _from_theirs(self, count: int) -> list[int]:
        taken = [int(block_id) for block_id in self._theirs.allocate(count)]
        if len(set(taken)) != count:
            raise ValueError(f"allocate({count}) gave {shown(taken)}")
        if held := [block_id for block_id in taken if block_id not in self.free]:
            raise ValueError(f"allocate({count}) gave block {held[0]}, which somebody holds")
        return taken

    def release(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            self.ref_counts[block_id] -= 1
            if self.ref_counts[block_id] == 0:
                self.free[block_id] = None
        self._watch.ask(lambda: self._release_theirs(block_ids), lambda: None)

    def _release_theirs(self, block_ids: Sequence[int]) -> None:
        self._theirs.release(list(block_ids))
        if self._theirs.num_free != len(self.free):
            raise ValueError(f"after release, num_free is {shown(self._theirs.num_free)}, not {len(self.free)}")


class NamedBlocks(KVCacheManager):
    """Blocks are registered and found under a learner's names. The engine's own say whether these mean the same."""

    def __init__(self, block_names: Callable[..., Sequence[Any]], watch: Watch, like: KVCacheManager) -> None:
        super().__init__(
            len(like.pool),
            like.block_size,
            enable_prefix_caching=like.enable_prefix_caching,
            reserve_tokens=like.reserve_tokens,
            window=like.window,
        )
        self._block_names, self._watch = block_names, watch
        self._theirs: dict[Request, list[Any]] = {}
        self._meanings: dict[Any, bytes] = {}
        self._names: dict[bytes, Any] = {}

    def _hashes(self, request: Request) -> list[Any]:
        ours = super()._hashes(request)
        return self._watch.ask(lambda: self._named(request, ours), lambda: ours) if ours else ours

    def _named(self, request: Request, ours: list[bytes]) -> list[Any]:
        if len(self._theirs.get(request, ())) < len(ours):
            token_ids = request.token_ids(0, len(ours) * self.block_size)
            found = list(self._block_names(token_ids, self.block_size, ()))
            if len(found) != len(ours):
                raise ValueError(f"{len(found)} names for {len(ours)} full blocks")
            for name, own in zip(found, ours):
                if self._meanings.setdefault(name, own) != own:
                    raise ValueError(f"two blocks have the name {shown(name)}, and not all before them is the same")
                if self._names.setdefault(own, name) != name:
                    raise ValueError(f"a block was named {shown(self._names[own])} before, and now {shown(name)}")
            self._theirs[request] = found
        return self._theirs[request]


class OwnEviction(FreeBlocks):
    """A learner decides which free block that caches something goes first; the engine keeps its own order beside it."""

    def __init__(self, num_blocks: int, theirs: Any, watch: Watch) -> None:
        super().__init__(num_blocks)
        self._theirs, self._watch = theirs, watch

    def add(self, block_ids: Sequence[int], hashes: Sequence[bytes | None]) -> None:
        super().add(block_ids, hashes)
        cached = [block_id for block_id in reversed(block_ids) if hashes[block_id] is not None]  # as in the table
        if cached:
            self._watch.ask(lambda: self._theirs.release(cached), lambda: None)

    def take(self, count: int) -> tuple[list[int], list[int]]:
        plain, _ = super().take(min(count, len(self._plain)))
        missing = count - len(plain)
        if not missing:
            return plain, []
        evicted = self._watch.ask(lambda: self._evict(missing), lambda: list(islice(self._cached, missing)))
        for block_id in evicted:
            super().take_cached(block_id)
        return plain, evicted

    def _evict(self, count: int) -> list[int]:
        found = [int(block_id) for block_id in self._theirs.evict(count)]
        if len(set(found)) != count:
            raise ValueError(f"evict({count}) gave {shown(found)}")
        if wrong := [block_id for block_id in found if block_id not in self._cached]:
            raise ValueError(f"evict({count}) gave block {wrong[0]}, which is in use")
        return found

    def take_cached(self, block_id: int) -> None:
        super().take_cached(block_id)
        self._watch.ask(lambda: self._theirs.revive(block_id), lambda: None)


class CheckingSampler(Sampler):
    """Drafts that were drawn are checked by a learner's `verify`, one at a time; all else is the engine's.

    Args:
        ours: the runner's own, which takes over.
    """

    def __init__(self, verify: Callable[..., Any], watch: Watch, ours: Sampler) -> None:
        self._verify, self._watch, self._ours = verify, watch, ours
        self._rng = np.random.default_rng(0)

    def choose(self, logits: Tensor, requests: Sequence[Row]) -> Tensor:
        token_ids = self._ours.choose(logits.clone(), requests)
        drafts = [row.next_draft if isinstance(row, DraftPosition) else None for row in requests]
        for i in (i for i, draft in enumerate(drafts) if draft is not None):
            rows = on_device([i], logits.device)
            p = probabilities(logits[rows], [requests[i]])[0].double().cpu().numpy()
            token, q = drafts[i]
            q = q.double().cpu().numpy()
            own = int(token_ids[i])
            token_ids[i] = self._watch.ask(lambda p=p, q=q, x=token: self._outcome(p, q, x), lambda own=own: own)
        return token_ids

    def _outcome(self, p: np.ndarray, q: np.ndarray, draft: int) -> int:
        """The token that belongs at the draft's place: its row alone is verified, with a bonus that nobody reads."""
        p, q = p / p.sum(), q / q.sum()
        found = int(next(iter(self._verify(np.stack([p, p]), q[None], [draft], self._rng))))
        if not 0 <= found < len(p) or p[found] == 0:
            raise ValueError(f"verify gave token {found}, which has no chance under p")
        return found


class OwnProposer(NoProposer):
    """Drafts come from a learner's function."""

    def __init__(self, propose: Callable[[list[int], int], Sequence[int]], watch: Watch) -> None:
        self._propose, self._watch = propose, watch

    def propose(self, wanted: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft(self._watch.ask(lambda r=request, k=k: self._draft(r, k), list)) for request, k in wanted]

    def _draft(self, request: Request, k: int) -> list[int]:
        found = [int(token) for token in self._propose(request.token_ids(0, request.num_known_tokens), k)]
        if len(found) > k:
            raise ValueError(f"{len(found)} tokens were proposed; at most {k} were asked for")
        return found


def build_engine(config: EngineConfig, parts: Parts, notes: list[str], **arguments: Any) -> Engine:
    """An engine with a learner's parts in it.

    Args:
        notes: where it says what was replaced, and why.
        arguments: of Engine; `model` and `clock`, or a `runner`.
    """
    if parts.block_pool is not None:
        config = config.replace(enable_prefix_caching=False)
    if parts.proposer is not None:
        config = config if config.speculative else config.replace(speculative=USUAL_DRAFT)
        arguments["proposer"] = OwnProposer(parts.proposer, Watch("proposer", notes))
    engine = Engine(config, **arguments)
    if parts.attention is not None:
        attend_with(engine.runner, parts.attention, Watch("attention", notes))
    if parts.scheduler_step is not None or parts.pick_victim is not None:
        engine.scheduler = OpenScheduler(parts, notes, engine)
    if parts.block_names is not None:
        engine.scheduler.kv = NamedBlocks(parts.block_names, Watch("block names", notes), engine.scheduler.kv)
    if parts.block_pool is not None:
        size, watch = engine.runner.num_kv_blocks, Watch("block pool", notes)
        theirs = watch.ask(lambda: parts.block_pool(size), lambda: None)
        engine.scheduler.kv.pool = SharedPool(size, theirs, watch)
    if parts.eviction_order is not None and parts.block_pool is None:
        watch = Watch("eviction order", notes)
        theirs = watch.ask(parts.eviction_order, lambda: None)
        engine.scheduler.kv.pool.free = OwnEviction(engine.runner.num_kv_blocks, theirs, watch)
    if parts.sampler is not None:
        engine.runner.sampler = CheckingSampler(parts.sampler, Watch("sampler", notes), engine.runner.sampler)
    return engine


class OpenLab(Lab):
    """A lab whose engine takes a learner's parts: `lab.run_with("chat", block_pool=BlockPool)`. Arguments as Lab."""

    def __init__(self, **defaults: Any) -> None:
        super().__init__(**defaults)
        self._parts = Parts()
        self.notes: list[str] = []
        """What was replaced in the last run, and why."""

    def run_with(self, name: str | Workload, *, seed: int = 0, **parts_and_fields: Any) -> Run:
        """A run with parts of your own, by their names in `Parts`; other arguments are EngineConfig fields."""
        own = {key: parts_and_fields.pop(key) for key in list(parts_and_fields) if hasattr(Parts, key)}
        self._parts = replace(Parts(), **own)
        self.notes.clear()
        try:
            return self.run(name, seed=seed, **parts_and_fields)
        finally:
            self._parts = Parts()
            for note in self.notes:
                print(note)

    def beside(self, ours: Run, yours: Run) -> Html:
        """The dashboard of your run, with the engine's own as its ghost."""
        pairs = list(zip(ours.outputs, yours.outputs))
        same = sum(one.token_ids == other.token_ids for one, other in pairs)
        words = f"{same} of {len(pairs)} answers are token for token those of the engine's own parts"
        state = "; ".join([words, *self.notes])
        return Html(render(yours, ours, state), state)

    def _engine_thread(self, config: EngineConfig) -> Any:
        return EngineThread(config, build=self._build_with_parts)

    def _build_with_parts(self, config: EngineConfig, model: Any, clock: Any) -> Engine:
        return build_engine(config, self._parts, self.notes, model=model, clock=clock)
