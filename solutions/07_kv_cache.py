# %% [markdown]
# # 07 · Exercises: the KV cache
#
# Write your answer where the stub tells you to, run its cell, then run the check below it. The check shows what you
# earned and what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.
#
# Unless an exercise says otherwise, change nothing that you are given, and keep nothing from one call for the next.

# %%
from course.lab import check, hint

# %% [markdown] exercise="block-pool"
# ## A block pool with reference counts
#
# *block-pool · lesson 07 · ●●○ · 30 minutes · 12 points*
#
# The KV cache is cut into **blocks** of equal size, numbered from 0. A request holds some of them, in its *block table*. Two
# requests with the same beginning may hold the **same** block, so a block is free only when *no* request holds it any more: it has a
# **reference count**, the number of its holders.
#
# Write a class `BlockPool`:
#
# - `BlockPool(num_blocks)`: all free.
# - `num_free`: an attribute or property; how many blocks are free.
# - `allocate(count)`: take `count` free blocks and return their ids as a list; each has one holder now. Which of the free
#   ones is up to you. `IndexError` if fewer are free.
# - `share(block_ids)`: one more holder for each. `ValueError` if one of them is free.
# - `release(block_ids)`: one holder less for each. `ValueError` if one of them is free.
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
# Block 0 outlives A. A pool that freed it with A would give it to another request, and B would attend to a stranger's text.

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
                raise ValueError(f"block {block} is free")

    # [stub]
    # [end]


# %%
check("block-pool", BlockPool)

# %% [markdown]
# **Your code serves the real model** (optional; takes a few seconds). Every block of the KV cache that holds a token of these
# answers was handed out by your pool. The dashboard shows the run with your pool, and the engine's as a ghost.

# %%
from course.grading.plug_in import OpenLab

lab = OpenLab(instead_of=globals().get("lab"), enable_prefix_caching=False)  # finding equal blocks is another exercise
ours = lab.run("chat")
# [solution]
yours = lab.run_with("chat", block_pool=BlockPool)
lab.beside(ours, yours)
# [stub]
# lab.serve_yours(ours, lambda: lab.run_with("chat", block_pool=BlockPool))
# [end]

# %% [markdown] exercise="block-tables"
# ## Block tables and the slot mapping
#
# *block-tables · lesson 07 · ●○○ · 25 minutes · 11 points*
#
# The KV cache is cut into blocks of `block_size` tokens. Block b owns the **slots** b · block_size to
# (b + 1) · block_size - 1, one for each token. A request's **block table** lists its blocks in the order of its text:
# the first one holds positions 0 to block_size - 1, and so on. Which blocks these are does not matter: they may lie
# anywhere.
#
# Before each step the engine tells the GPU two things. The **slot mapping**: where to write the keys and values of the
# tokens that are computed now. And the block tables as one rectangle: where attention reads what came before.
#
# - `more_blocks(num_held, num_tokens, block_size)`: how many more blocks a request needs if it holds `num_held` and
#   must have room for `num_tokens` tokens in all. 0 if it has enough.
# - `lay_out(requests, block_size, null_block)`: each request is a triple `(block_ids, start, end)`: its block table,
#   and the positions start, ..., end - 1 that this step computes (`0 <= start < end`). Those before `start` are in the
#   cache already. Give back a pair:
#   - `slots`: one flat list, the slots of all tokens of the step, request after request;
#   - `tables`: one row for each request, its blocks for positions 0 to end - 1. A table may hold more blocks than that:
#     cut it. All rows are as long as the longest; shorter ones are padded at the end with `null_block`.
#
# `ValueError` if a table has too few blocks for `end`. With no requests, return two empty lists. Change nothing that
# you are given.

# %% [markdown]
# **A worked example.** Blocks of 4 tokens. A request has 6 tokens in the blocks `[7, 2]`, and the step computes
# positions 3 to 5:
#
# | position | block of the table | its number | offset | slot |
# |---|---|---|---|---|
# | 3 | 3 // 4 = 0 | 7 | 3 % 4 = 3 | 7 · 4 + 3 = 31 |
# | 4 | 4 // 4 = 1 | 2 | 4 % 4 = 0 | 2 · 4 + 0 = 8 |
# | 5 | 5 // 4 = 1 | 2 | 5 % 4 = 1 | 2 · 4 + 1 = 9 |
#
# Neighbours in the text, 31 and 8 in the cache.

# %%
two_requests = [([7, 2], 3, 6), ([5], 0, 2)]

# %% [markdown]
# **Now you.** `more_blocks` has one gap; `lay_out` is all yours. For the two requests above it gives the slots
# `[31, 8, 9, 20, 21]`, and the tables `[[7, 2], [5, null_block]]`.


# %% answer="block-tables"
def more_blocks(num_held, num_tokens, block_size):
    # [solution]
    num_needed = -(-num_tokens // block_size)  # rounded up
    # [stub]
    # raise NotImplementedError("how many blocks do so many tokens fill, the last one perhaps in part? then take this out")
    # num_needed = ...
    # [end]
    return max(num_needed - num_held, 0)


def lay_out(requests, block_size, null_block):
    # [solution]
    slots, rows = [], []
    for block_ids, start, end in requests:
        if more_blocks(len(block_ids), end, block_size) > 0:
            raise ValueError(f"{len(block_ids)} blocks are too few for {end} tokens")
        slots += [block_ids[p // block_size] * block_size + p % block_size for p in range(start, end)]
        rows.append(list(block_ids[: more_blocks(0, end, block_size)]))
    width = max(map(len, rows), default=0)
    return slots, [row + [null_block] * (width - len(row)) for row in rows]
    # [stub]
    # raise NotImplementedError("where does each token go, and what does each row hold?")
    # [end]


# %%
# [solution]
lay_out(two_requests, 4, null_block=99)
# [stub]
# # lay_out(two_requests, 4, null_block=99)
# [end]

# %%
check("block-tables", more_blocks, lay_out)

# %% [markdown] exercise="kv-bill"
# ## KV cache size
#
# *kv-bill · lesson 07 · ●●○ · 30 minutes · 13 points*
#
# In each layer, each **KV head** keeps two vectors of a token, its key and its value, of `head_dim` numbers each. With
# **multi-head** attention (MHA) there are as many KV heads as query heads; with **grouped-query** attention (GQA) one
# for each group of query heads; with **multi-query** attention (MQA) a single one. A model's `shape` is a dictionary:
# `layers`, `num_heads` (query heads), `num_kv_heads`, `head_dim`.
#
# A number takes 4 bytes in `"float32"`, 2 in `"bfloat16"` and `"float16"`, 1 in `"int8"` and `"fp8"`. In `"int8"` and
# `"fp8"` each vector also has a **scale** of 2 bytes.
#
# - `bytes_per_token(shape, dtype)`: what one token leaves in the cache, over all layers.
# - `bytes_per_request(shape, dtype, num_tokens, block_size, window=None)`: what a request holds once all its
#   `num_tokens` tokens (at least 1) are computed. Memory is given out in whole blocks. With a **sliding window** (at
#   least 2) a token sees only the last `window` tokens, itself included. The next token will be at position
#   `num_tokens` (positions count from 0): blocks in which neither it nor a later one sees any position have been given
#   back.
# - `requests_that_fit(shape, dtype, memory_bytes, num_tokens, block_size, window=None, shared_tokens=0)`: how many such
#   requests a pool of `memory_bytes` holds at once; a pool has whole blocks only. If the first `shared_tokens` tokens
#   of all are the same (fewer than `num_tokens`; only asked without a window), the *full* blocks of these are held once
#   for all.
#
# All results are whole numbers.

# %% [markdown]
# **A worked example.** A small model with GQA, 12 query heads on 4 KV heads, in `bfloat16`:
#
# | | factor | so far |
# |---|---|---|
# | numbers in a vector | 64 | 64 |
# | bytes of a number | 2 | 128 |
# | key and value | 2 | 256 |
# | KV heads (not the 12 query heads) | 4 | 1024 |
# | layers | 24 | 24,576 |
#
# In `int8` a vector takes 64 + 2 bytes, so a token 24 · 4 · 2 · 66 = 12,672: a little more than half.
#
# Then the blocks: 100 tokens in blocks of 16 hold 7 of them. With a window of 40 the next token, at position 100, sees
# from position 61 on. That is in block 3: blocks 0, 1 and 2 are given back, 4 are held. (40 tokens would fit into 3.)

# %%
small = {"layers": 24, "num_heads": 12, "num_kv_heads": 4, "head_dim": 64}
llama_70b = {"layers": 80, "num_heads": 64, "num_kv_heads": 8, "head_dim": 128}

# %% [markdown]
# **Now you.** `bytes_per_token` has one gap; the other two are all yours.


# %% answer="kv-bill"
def bytes_per_token(shape, dtype):
    bytes_of_a_number = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8": 1}[dtype]
    vector = shape["head_dim"] * bytes_of_a_number + (2 if dtype in ("int8", "fp8") else 0)
    # [solution]
    num_vectors = shape["layers"] * shape["num_kv_heads"] * 2
    # [stub]
    # raise NotImplementedError("how many vectors does a token leave behind? then take this line out")
    # num_vectors = ...
    # [end]
    return num_vectors * vector


# [solution]
def blocks_held(num_tokens, block_size, window):
    first_seen = 0 if window is None else max(num_tokens - window + 1, 0)
    return -(-num_tokens // block_size) - first_seen // block_size


# [stub]
# [end]
def bytes_per_request(shape, dtype, num_tokens, block_size, window=None):
    # [solution]
    return blocks_held(num_tokens, block_size, window) * block_size * bytes_per_token(shape, dtype)
    # [stub]
    # raise NotImplementedError("how many blocks does it hold, and what does a block take?")
    # [end]


def requests_that_fit(shape, dtype, memory_bytes, num_tokens, block_size, window=None, shared_tokens=0):
    # [solution]
    pool = memory_bytes // (block_size * bytes_per_token(shape, dtype))
    shared = shared_tokens // block_size
    own = blocks_held(num_tokens, block_size, window) - shared
    return max(pool - shared, 0) // own
    # [stub]
    # raise NotImplementedError("count in blocks: how many has the pool, how many does each request need for itself?")
    # [end]


# %% [markdown]
# What do 40 GB hold of Llama-3 70B's requests with 1,500 tokens? And if 1,200 of these are the same system prompt for
# all?

# %%
# [solution]
alone = requests_that_fit(llama_70b, "bfloat16", 40 * 10**9, 1500, 16)
sharing = requests_that_fit(llama_70b, "bfloat16", 40 * 10**9, 1500, 16, shared_tokens=1200)
print(f"{bytes_per_token(llama_70b, 'bfloat16'):,} bytes a token; {alone} requests, or {sharing} that share")
# [stub]
# # requests_that_fit(llama_70b, "bfloat16", 40 * 10**9, 1500, 16)
# # requests_that_fit(llama_70b, "bfloat16", 40 * 10**9, 1500, 16, shared_tokens=1200)
# [end]

# %%
check("kv-bill", bytes_per_token, bytes_per_request, requests_that_fit)

# %% [markdown] exercise="preemption"
# ## Preemption: when blocks run out
#
# *preemption · lesson 07 · ●●● · 40 minutes · 14 points*
#
# Running requests grow by a token per step, and every now and then one needs another block. When none is free, a request is
# **preempted**: its blocks are freed, it waits again, and later it's computed from the start (*recompute*). You write which
# request goes, what it loses, and where it queues; together they must let every request finish in the end.
#
# A request has the attributes `request_id`, `arrival` (a number; lower came earlier), `num_tokens` (prompt and output
# so far), `num_computed_tokens` (of those, in the cache) and `blocks` (the list of the ids it holds; here no two
# requests share one). There are three lists: `running`, in order of *admission*; `waiting`, in order of *arrival*;
# `free`, the ids of free blocks.
#
# - `preempt(victim, running, waiting, free)`: the victim leaves `running` and takes its place in `waiting`, by arrival.
#   All its blocks are free again, it holds none, and none of its tokens count as computed any more. But it keeps its
#   tokens: the client has read them already. Change the lists you are given, and the victim; return nothing.
# - `pick_victim(running, planned)`: which request goes. `planned` is the set of ids of those that are in this step
#   already: the step is about to write into their blocks, so they stay. Of the others, return the **last** in
#   `running`, or None if there is none.
# - `make_room(request, count, running, waiting, free, planned)`: `request`, which is running and not planned, needs
#   `count` more blocks. Preempt one victim after another until that many are free, no more than it takes. The request
#   itself is a candidate like all the others: if it goes, stop. Return True if there is room now, False if the
#   request itself had to go. Hand nothing out: the engine does that.
#
#   `ValueError` if it wants more than could ever be free: more blocks, counting those it holds, than `free` and all of
#   `running` have together. Then no request is preempted.

# %% [markdown]
# **A worked example.** `running` is a, b, c, in this order; no block is free. The step is put together, and each needs
# one block:
#
# | asking | planned | victim | then |
# |---|---|---|---|
# | a | – | c, the last | c's 3 blocks are free; a gets one |
# | b | a | none: two are free | b gets one |
# | c | a, b | – | it waits; its turn comes when blocks are free |
#
# And if b had asked with nothing free and a planned, c would go; without c, b itself. Never a: **the one that was
# admitted first is never taken for others, so it finishes, gives its blocks back, and then another is first.** That is
# why all of them make progress.

# %% [markdown]
# **Now you.** `preempt` is written but for one gap; the other two are all yours.


# %% answer="preemption"
def preempt(victim, running, waiting, free):
    running.remove(victim)
    # [solution]
    free.extend(victim.blocks)
    victim.blocks = []
    victim.num_computed_tokens = 0
    # [stub]
    # raise NotImplementedError("what does it give back, and what of it is computed now?")
    # [end]
    waiting.append(victim)
    waiting.sort(key=lambda request: request.arrival)


def pick_victim(running, planned):
    # [solution]
    return next((request for request in reversed(running) if request.request_id not in planned), None)
    # [stub]
    # raise NotImplementedError("who goes?")
    # [end]


def make_room(request, count, running, waiting, free, planned):
    # [solution]
    total = len(free) + sum(len(each.blocks) for each in running)
    if len(request.blocks) + count > total:
        raise ValueError(f"{request.request_id} needs more than all {total} blocks")
    while len(free) < count:
        victim = pick_victim(running, planned)
        preempt(victim, running, waiting, free)
        if victim is request:
            return False
    return True
    # [stub]
    # raise NotImplementedError("until there is room: pick a victim, preempt it; was it the request itself?")
    # [end]


# %%
check("preemption", preempt, pick_victim, make_room)

# %% [markdown]
# **Your code serves the real model** (optional; takes a few seconds; `lab` is the one from above). A pool too small for
# the requests that run at once: the engine asks your `pick_victim` whenever blocks run out. Answers stay the same, they
# only come later. (That is first come, first served. With priorities the engine may also take a request out of the step
# again, if it ranks behind the one that asks; yours may not.)

# %%
ours = lab.run("burst", num_kv_blocks=8)
# [solution]
yours = lab.run_with("burst", num_kv_blocks=8, pick_victim=pick_victim)
lab.beside(ours, yours)
# [stub]
# lab.serve_yours(ours, lambda: lab.run_with("burst", num_kv_blocks=8, pick_victim=pick_victim))
# [end]
