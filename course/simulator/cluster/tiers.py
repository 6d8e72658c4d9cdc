"""KV tiers: prompts' keys and values outlive the GPU's prefix cache in host memory, or in a store that replicas share.

    prompt -> GPU's prefix cache -> first tier -> second tier -> the rest is computed

Every full block of a prompt is written to every tier when its request is done, and each tier forgets what was used
least recently. When a prompt comes to a replica, what the GPU lacks is looked up tier by tier, each going on where the
one before it ended. What is found is fetched, then the request joins the queue, and finds it in the GPU's prefix cache.
(LMCache, arXiv 2510.09665; Mooncake, Qin et al. 2024, arXiv 2407.00079; CachedAttention, Gao et al.
2024, arXiv 2403.19708, keeps conversations that way.)

Simpler than real ones: writing is free, whatever is found is fetched, even where computing it would be faster, and
a request waits for all of it, not layer by layer. Answers are written when they return as part of a prompt. Until
there is room on the GPU, what has been fetched waits, with the blocks before it, in a buffer of its own. A request that
waits for blocks is not dropped at its deadline (`Shedding.deadline_s`).
"""

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from course.simulator.cluster.jobs import Job
from course.simulator.errors import WorkloadError
from course.simulator.fast_forward import FastForwardCore
from course.simulator.workload.streams import WorkloadModel
from minillm.core.block_pool import ROOT, block_hashes
from minillm.core.request import RequestStatus
from minillm.frontend.engine import Engine


class TierConfig(WorkloadModel):
    """One place where keys and values are kept."""

    name: str = Field(min_length=1, description="what reports call it, such as host")
    capacity_gb: float = Field(gt=0, description="of keys and values, 10^9 bytes; of each replica, if it is its own")
    bytes_per_s: float = Field(gt=0, description="to all accelerators of a replica together; transfers take turns")
    latency_s: float = Field(0.0, ge=0, description="seconds a transfer takes before its first byte")
    shared: bool = Field(False, description="one for all replicas of a pool; otherwise each has its own")


class Tier:
    """Blocks by hash, least recently used first, and the link they come over."""

    def __init__(self, config: TierConfig) -> None:
        self.config = config
        self._blocks: OrderedDict[bytes, None] = OrderedDict()
        self._link_free_at = 0.0

    def match(self, hashes: Sequence[bytes]) -> int:
        """How many of these blocks it has, from the first on."""
        found = list(itertools.takewhile(self._blocks.__contains__, hashes))
        self._use(found)
        return len(found)

    def write(self, hashes: Sequence[bytes], block_bytes: float) -> None:
        """Keep these blocks, in place of those that were used least recently."""
        self._use(hashes)
        while len(self._blocks) * block_bytes > 1e9 * self.config.capacity_gb:
            self._blocks.popitem(last=False)

    def transfer(self, num_bytes: float, now: float) -> float:
        """When so many bytes that are asked for now will have come."""
        begins = max(now, self._link_free_at)
        self._link_free_at = begins + num_bytes / self.config.bytes_per_s
        return self._link_free_at + self.config.latency_s

    def _use(self, hashes: Sequence[bytes]) -> None:
        for block_hash in reversed(hashes):  # a prefix outlives what follows it, as in the block pool
            self._blocks[block_hash] = None
            self._blocks.move_to_end(block_hash)


class ReplicaTiers:
    """The tiers behind one replica's prefix cache; perhaps none.

    Raises:
        WorkloadError: there are some, but its engine has no prefix cache.
    """

    def __init__(self, tiers: Sequence[Tier], engine: Engine) -> None:
        self.hits = {tier.config.name: 0 for tier in tiers}
        """Prompt tokens fetched from each tier."""
        self._tiers, self._core, self._scheduler, self._kv = tiers, engine.core, engine.scheduler, engine.scheduler.kv
        self._fetching: dict[Job, list[bytes]] = {}
        """The blocks that each job waits for, and those before them."""
        self._fetched: dict[Job, list[bytes]] = {}
        """The same, of jobs whose blocks have come; `land` forgets those that were admitted."""
        if tiers:
            if not self._kv.enable_prefix_caching:
                raise WorkloadError("tiers hand KV caches over through the prefix cache: set enable_prefix_caching")
            runner: Any = engine.runner
            self._block_bytes = self._kv.block_size * runner.kv_bytes_per_token

    @property
    def num_fetching(self) -> int:
        """Requests that wait for their blocks."""
        return len(self._fetching)

    def fetch(self, job: Job, now: float) -> float | None:
        """Begin to fetch what the tiers have of a prompt, and the GPU has not.

        Returns:
            When that will have come; None = they have nothing.
        """
        if not self._tiers:
            return None
        self._see_all()
        hashes = self._hashes(job.token_ids[:-1])  # one token at least is computed, for its logits
        end, arrivals = len(self._cached(hashes)), []
        for tier in self._tiers:
            if num_blocks := tier.match(hashes[end:]):
                arrivals.append(tier.transfer(num_blocks * self._block_bytes, now))
                self.hits[tier.config.name] += num_blocks * self._kv.block_size
                end += num_blocks
        if not arrivals:
            return None
        self._fetching[job] = hashes[:end]
        return max(arrivals)

    def fetched(self, job: Job) -> bool:
        """What a job waits for has come, so it joins the queue. False: it was cancelled."""
        if job in self._fetching:
            self._fetched[job] = self._fetching.pop(job)
        return job in self._fetched

    def land(self) -> None:
        """Before a step: put what queued requests have fetched into the prefix cache, as far as blocks are free.

        A request that is not admitted in that step may find it evicted in the next. So it is put there for each anew.
        """
        if self._fetched and self._scheduler.num_running < self._scheduler.config.max_num_seqs:
            self._fetched = {job: hashes for job, hashes in self._fetched.items() if is_waiting(job)}
            self._see_all()
            pool, held = self._kv.pool, []
            for hashes in self._fetched.values():
                cached = self._cached(hashes)
                pool.share(cached)
                fresh = pool.allocate(min(len(hashes) - len(cached), pool.num_free))
                for block_id, block_hash in zip(fresh, hashes[len(cached) :]):
                    pool.register(block_id, block_hash)
                held.append(cached + fresh)
                if not pool.num_free:
                    break
            for blocks in reversed(held):  # all were held so far, so that none was evicted for another
                pool.release(blocks)

    def cancel(self, job: Job) -> bool:
        """Let what comes for a job come for nothing. False: nothing was on its way."""
        return self._fetching.pop(job, None) is not None

    def write(self, token_ids: Sequence[int]) -> None:
        """Keep the full blocks of a prompt that has been computed."""
        hashes = self._hashes(token_ids) if self._tiers else []
        for tier in self._tiers:
            tier.write(hashes, self._block_bytes)

    def _see_all(self) -> None:
        """Have all that the engine has written in its prefix cache, before looking into that."""
        if isinstance(self._core, FastForwardCore):
            self._core.register_all()

    def _cached(self, hashes: Sequence[bytes]) -> list[int]:
        """The GPU's blocks that hold these, from the first on."""
        found = []
        for block_hash in hashes:
            if (block_id := self._kv.pool.find(block_hash)) is None:
                break
            found.append(block_id)
        return found

    def _hashes(self, token_ids: Sequence[int]) -> list[bytes]:
        return block_hashes(ROOT, token_ids, self._kv.block_size)


def is_waiting(job: Job) -> bool:
    """Whether an engine has its request in the queue, and never ran it."""
    return job.request is not None and job.request.status is RequestStatus.WAITING
