# %% [markdown]
# # 07 · Exercises: the KV cache
#
# Write your answer where the stub says so, run its cell, then run the check below it. A check says what you earned and
# what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.

# %%
from course.lab import check, hint

# %% [markdown] exercise="block-pool"
# ## A block pool with reference counts
#
# *block-pool · lesson 07 · ●●○ · 30 minutes · 12 points*
#
# The KV cache is cut into **blocks** of equal size, numbered from 0. A request holds some of them, in its *block table*. Two
# requests that begin alike may hold the **same** block, so a block is free only when *nobody* holds it any more: it has a
# **reference count**, the number of its holders.
#
# Write a class `BlockPool`:
#
# - `BlockPool(num_blocks)`: all free.
# - `num_free`: an attribute or property; how many blocks nobody holds.
# - `allocate(count)`: take `count` free blocks and return their ids as a list; each has one holder now. Which of the free
#   ones is up to you. `IndexError` if fewer are free.
# - `share(block_ids)`: one more holder for each. `ValueError` if nobody holds one of them.
# - `release(block_ids)`: one holder less for each. `ValueError` if nobody holds one of them.
#
# **What is refused changes nothing.** A table never names a block twice. And the pool may be large: no operation may look
# at all blocks, or its time grows with the memory of the machine.

# %% [markdown]
# **A worked example.** The counts of four blocks, as requests come and go:
#
# | | block 0 | 1 | 2 | 3 | free |
# |---|---|---|---|---|---|
# | A allocates 2 | 1 | 1 | 0 | 0 | 2 |
# | B begins like A: it shares block 0, allocates 1 | **2** | 1 | 1 | 0 | 1 |
# | A ends: releases 0 and 1 | **1** | 0 | 1 | 0 | 2 |
# | B ends: releases 0 and 2 | 0 | 0 | 0 | 0 | 4 |
#
# Block 0 outlives A. A pool that freed it with A would give it to somebody else, and B would read a stranger's text.

# %% [markdown]
# **Now you.** `allocate` is written but for one gap; `share` and `release` are all yours.


# %% answer="block-pool"
class BlockPool:
    def __init__(self, num_blocks):
        self.counts = [0] * num_blocks
        self.free = list(range(num_blocks))

    @property
    def num_free(self):
        return len(self.free)

    def allocate(self, count):
        if count > len(self.free):
            raise IndexError(f"{count} blocks wanted, {len(self.free)} free")
        taken = [self.free.pop() for _ in range(count)]
        # [solution]
        for block in taken:
            self.counts[block] = 1
        # [stub]
        # raise NotImplementedError("what must be noted about the blocks that were taken?")
        # [end]
        return taken

    def share(self, block_ids):
        # [solution]
        self._must_be_held(block_ids)
        for block in block_ids:
            self.counts[block] += 1
        # [stub]
        # raise NotImplementedError("one more holder for each; check before you change anything")
        # [end]

    def release(self, block_ids):
        # [solution]
        self._must_be_held(block_ids)
        for block in block_ids:
            self.counts[block] -= 1
            if self.counts[block] == 0:
                self.free.append(block)
        # [stub]
        # raise NotImplementedError("one holder less for each; who is free now?")
        # [end]

    # [solution]
    def _must_be_held(self, block_ids):
        for block in block_ids:
            if self.counts[block] == 0:
                raise ValueError(f"nobody holds block {block}")

    # [stub]
    # [end]


# %%
check("block-pool", BlockPool)

# %% [markdown]
# **Your code serves the real model** (optional; takes a few seconds). Every block of the KV cache that holds a token of these
# answers was handed out by your pool. The dashboard shows the run with your pool, and the engine's as a ghost.

# %%
from course.lab.grading.plug_in import OpenLab

lab = OpenLab(enable_prefix_caching=False)  # finding equal blocks is another exercise
ours = lab.run("chat")
# [solution]
yours = lab.run_with("chat", block_pool=BlockPool)
lab.beside(ours, yours)
# [stub]
# # yours = lab.run_with("chat", block_pool=BlockPool)
# # lab.beside(ours, yours)
# [end]
