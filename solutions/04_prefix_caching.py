# %% [markdown]
# # 04 · Exercises: prefix caching
#
# Write your answer where the stub tells you to, run its cell, then run the check below it. The check shows what you
# earned and what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.
#
# Unless an exercise says otherwise, change nothing that you are given, and keep nothing from one call for the next.

# %%
from course.lab import check, hint

# %% [markdown] exercise="prefix-hash-chain"
# ## The prefix hash chain, and its cap
#
# *prefix-hash-chain · lesson 04 · ●●○ · 35 minutes · 12 points*
#
# A prefix cache keeps the keys and values of prompts in blocks of `block_size` tokens. To find them again, each
# **full** block gets a **name**: a cryptographic hash of its tokens *and of the name of the block before it*, its
# **parent**. So a name covers everything from the start of the prompt to the end of the block, and nothing after. Two
# requests agree on a name exactly when they agree on all of that.
#
# Sometimes more than the tokens counts. A different LoRA adapter computes different keys and values from the same
# tokens; one tenant must not profit from another's prompts. Such things are **extra keys**, a tuple of strings
# (usually empty). Requests with different extra keys share no name.
#
# - `block_names(token_ids, block_size, extra_keys=())`: a list, one name for each full block. A name is `bytes` (or a
#   hex string), at least 16 long, all of the same length. Token ids may be large: up to 2³¹ - 1. The same question gets
#   the same answer in every process. The work must not grow faster than the number of tokens.
# - `cached_tokens(known, token_ids, block_size, extra_keys=())`: `known` is the set of all names in the cache. How many
#   tokens at the beginning of this prompt need not be computed? Whole blocks, from the first one on, as far as they are
#   known without a gap. But **at least one token must be left to compute**, or there would be nothing to choose the
#   first output token from: of n tokens at most (n - 1) // block_size blocks are found. An empty prompt finds 0.

# %% [markdown]
# **A worked example.** Two blocks of three tokens, chained by hand. `repr` keeps the boundaries: `[1, 23]` and `[12,
# 3]` read differently.

# %%
from hashlib import sha256

root = sha256(repr(()).encode()).digest()
first = sha256(root + repr([11, 12, 13]).encode()).digest()
second = sha256(first + repr([21, 22, 23]).encode()).digest()
elsewhere = sha256(root + repr([21, 22, 23]).encode()).digest()
print(second.hex()[:8], elsewhere.hex()[:8], "the same three tokens, a different name: a different beginning")

# %% [markdown]
# **Now you.** `block_names` has one gap; `cached_tokens` is all yours.


# %% answer="prefix-hash-chain"
from hashlib import sha256


def block_names(token_ids, block_size, extra_keys=()):
    parent = sha256(repr(tuple(extra_keys)).encode()).digest()
    names = []
    for end in range(block_size, len(token_ids) + 1, block_size):
        block = list(token_ids[end - block_size : end])
        # [solution]
        parent = sha256(parent + repr(block).encode()).digest()
        names.append(parent)
        # [stub]
        # raise NotImplementedError("name the block by its parent and its tokens; who is the next one's parent?")
        # [end]
    return names


def cached_tokens(known, token_ids, block_size, extra_keys=()):
    # [solution]
    names = block_names(token_ids, block_size, extra_keys)
    most = max(len(token_ids) - 1, 0) // block_size
    found = 0
    while found < min(most, len(names)) and names[found] in known:
        found += 1
    return found * block_size
    # [stub]
    # raise NotImplementedError("how many blocks, from the first on, are known?")
    # [end]


# %% [markdown]
# A prompt of six tokens, sent twice: everything is known, and yet one block must be computed.

# %%
# [solution]
everything = [11, 12, 13, 21, 22, 23]
cached_tokens(set(block_names(everything, 3)), everything, 3)
# [stub]
# # everything = [11, 12, 13, 21, 22, 23]
# # cached_tokens(set(block_names(everything, 3)), everything, 3)
# [end]

# %%
check("prefix-hash-chain", block_names, cached_tokens)

# %% [markdown]
# **Your code serves the real model** (optional; takes a few seconds). The engine names its blocks with your
# `block_names`, and finds them by these names. Every question in this traffic has the same handbook in front of it.

# %%
from course.grading.plug_in import OpenLab

lab = OpenLab(instead_of=globals().get("lab"))
ours = lab.run("rag")
# [solution]
yours = lab.run_with("rag", block_names=block_names)
lab.beside(ours, yours)
# [stub]
# lab.serve_yours(ours, lambda: lab.run_with("rag", block_names=block_names))
# [end]

# %% [markdown] exercise="lru-eviction"
# ## Whose cached blocks go first?
#
# *lru-eviction · lesson 04 · ●●○ · 25 minutes · 10 points*
#
# When a request ends, its blocks are free, and they still cache its text: a later request with the same beginning finds them.
# Only when the engine needs a free block for something else must one of them forget what it caches: it is **evicted**.
# Which one? The **least recently used** (LRU): the one released longest ago. And of the blocks that one request releases
# together, the **deepest** first, the last of its table: a block is useful only while all before it are cached, so a
# chain is evicted from its end.
#
# Write a class `EvictionOrder`, which knows the blocks that are free and cache something:
#
# - `EvictionOrder()`: none yet. `len(order)`: how many there are.
# - `release(block_ids)`: a request releases these now, in the order of its table. `ValueError` if one is in the order
#   already.
# - `revive(block_id)`: a hit: a request uses this block again, so it is no longer free. When it is released again, it
#   is as young as what is released with it. `KeyError` if it is not in the order.
# - `evict(count)`: the `count` blocks to evict, as a list, the first to go first. They leave the order. `IndexError` if
#   there are fewer.
#
# **What is refused changes nothing.** And there may be very many: no operation may look at all of them.

# %% [markdown]
# **A worked example.** The next to go is on the left.
#
# | | order |
# |---|---|
# | A ends, `release([4, 7, 1])` | 1 7 4 |
# | B ends, `release([9, 2])` | 1 7 4 2 9 |
# | C begins like A did: `revive(4)`, `revive(7)` | 1 2 9 |
# | one block is needed: `evict(1)` gives `[1]` | 2 9 |
# | C ends, `release([4, 7, 3])` | 2 9 3 7 4 |
#
# Block 4, the beginning that both A and C used, is the last to go now. That is how a system prompt survives.

# %% [markdown]
# **Now you.** `evict` has one gap; `release` and `revive` are all yours.


# %% answer="lru-eviction"
from collections import OrderedDict


class EvictionOrder:
    def __init__(self):
        self.order = OrderedDict()  # block id -> None; the next to go is the first

    def __len__(self):
        return len(self.order)

    def evict(self, count):
        if count > len(self.order):
            raise IndexError(f"{count} blocks wanted, {len(self.order)} there")
        # [solution]
        return [self.order.popitem(last=False)[0] for _ in range(count)]
        # [stub]
        # raise NotImplementedError("take out the first ones; popitem(last=False) takes out one, and gives (id, None)")
        # [end]

    def release(self, block_ids):
        # [solution]
        for block in block_ids:
            if block in self.order:
                raise ValueError(f"block {block} is free already")
        for block in reversed(block_ids):
            self.order[block] = None
        # [stub]
        # raise NotImplementedError("in which order do they join? check before you change anything")
        # [end]

    def revive(self, block_id):
        # [solution]
        del self.order[block_id]
        # [stub]
        # raise NotImplementedError("it leaves, wherever it stands")
        # [end]


# %%
check("lru-eviction", EvictionOrder)

# %% [markdown]
# **Your code serves the real model** (optional; takes a few seconds; `lab` is the one from above). The cache is too
# small for everything that's read: your `EvictionOrder` decides what is forgotten.

# %%
ours = lab.run("mixed", num_kv_blocks=64)
# [solution]
yours = lab.run_with("mixed", num_kv_blocks=64, eviction_order=EvictionOrder)
lab.beside(ours, yours)
# [stub]
# lab.serve_yours(ours, lambda: lab.run_with("mixed", num_kv_blocks=64, eviction_order=EvictionOrder))
# [end]

# %% [markdown] exercise="prompt-builder"
# ## A cache-friendly prompt
#
# *prompt-builder · lesson 04 · ●○○ · 25 minutes · 11 points*
#
# A prefix cache finds a prompt as far as it **begins** like an earlier one. You build the prompts of a service so that
# successive ones share as long a beginning as possible. A request is a dictionary:
#
# - `system`: the instructions, the same for all requests; `tools`: a list of tools, also the same for all, but
#   collected from several services, so **their order, and that of their keys, changes** from request to request;
# - `handbook`: one for each tenant (a customer of the service, with many users);
# - `user`: who asks; `history`: what this user and the model said before, a list of turns, which only grows;
# - `question`, and `now`, the time to the second: different in each request.
#
# All are strings except `tools` and `history`; the turns are strings. Write two functions:
#
# - `render_tools(tools)`: the tools as JSON, a list sorted by `"name"`. The same tools must give the same text,
#   whatever order they and their keys come in, at every depth. (Lists *inside* a tool, such as the allowed values of a
#   parameter, keep their author's order, which does not change: leave it.)
# - `build_prompt(request)`: the prompt, a string. In it, word for word: every string, all turns in their order, and the
#   text of `render_tools`. What is between them (headings, line breaks) is up to you. Whatever two requests have in
#   common must be part of their prompts' shared beginning: **what changes least often first**. Which of `question` and
#   `now` is last does not matter here: both are new each time.
#
# Leave nothing out, make nothing coarser, and remember nothing from an earlier call. Change nothing that you are given.

# %% [markdown]
# **A worked example.** Two parts only, an instruction and a clock. How many characters do two prompts share, a second
# apart?


# %%
def shared(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


early, late = "It is 10:15:07.", "It is 10:15:08."
rule = "Answer briefly, and only from the handbook."
print(shared(f"{early} {rule}", f"{late} {rule}"), "characters with the time first")
print(shared(f"{rule} {early}", f"{rule} {late}"), "with the time last: the same words, in another order")

# %% [markdown]
# **Now you.** `render_tools` has one gap; `build_prompt` is all yours.


# %% answer="prompt-builder"
import json


def render_tools(tools):
    # [solution]
    tools = sorted(tools, key=lambda tool: tool["name"])
    return json.dumps(tools, sort_keys=True)
    # [stub]
    # raise NotImplementedError("in which order do the tools come, and their keys? then take this line out")
    # return json.dumps(tools)
    # [end]


def build_prompt(request):
    # [solution]
    parts = [request["system"], render_tools(request["tools"]), request["handbook"], request["user"]]
    return "\n".join([*parts, *request["history"], request["question"], request["now"]])
    # [stub]
    # raise NotImplementedError("sort the parts: never changes, changes with the tenant, the user, the turn, each request")
    # [end]


# %%
check("prompt-builder", render_tools, build_prompt)

# %% [markdown] exercise="radix-tree"
# ## A prefix cache as a radix tree
#
# *radix-tree · lesson 04 · ●●● · 50 minutes · 15 points*
#
# SGLang doesn't name blocks by a hash: it keeps all cached sequences in a **radix tree**. What several sequences have in common at
# their beginning is one path from the root; where they part, the path forks. A run of tokens without a fork is one **edge**, however long
# it is. So a prefix is found to the token, not to the block.
#
# Write a class `RadixTree`, over lists of token ids:
#
# - `RadixTree()`: empty.
# - `insert(tokens)`: from now on this sequence is in the cache. Return how many of its tokens are new: not in the tree yet as a continuation
#   of the same beginning.
# - `match(tokens)`: how many tokens, from the first one on, are in the tree: the longest common beginning with anything inserted. It may end inside
#   an edge.
# - `num_tokens`: an attribute or property; how many tokens the tree holds. What sequences share is held once.
# - `evict(count)`: forget `count` tokens, or all if there are fewer, and return how many went. One after the other, the token goes
#   that has nothing behind it (so every prefix that is still in use stays whole) and, of those, was **used longest ago**. An `insert` uses
#   all its tokens, a `match` those that it found, and no others.
#
# No two uses happen at the same time, so there is always one answer. The lists are the caller's: don't change them, and don't rely on them
# afterwards. A tree may be large: `insert` and `match` may not look at all of it.

# %% [markdown]
# **A worked example.**
#
# | | returns | in the tree, oldest use first | tokens |
# |---|---|---|---|
# | `insert([1, 2, 3, 4])` | 4 | 1 2 3 4 | 4 |
# | `insert([1, 2, 7])` | 1 | 1 2 3 4, 1 2 7: one path that forks behind 2 | 5 |
# | `match([1, 2, 3, 9])` | 3 | 4 was used by the first insert only; 7 by the second; 1 2 3 now | 5 |
# | `evict(1)` | 1 | the ends are 4 and 7, and 4 is older: 1 2 3, 1 2 7 | 4 |
# | `evict(1)` | 1 | the ends are 3, used just now, and 7: 1 2 3 | 3 |

# %%
calls = [("insert", [1, 2, 3, 4]), ("insert", [1, 2, 7]), ("match", [1, 2, 3, 9]), ("evict", 1), ("evict", 1)]

# %% [markdown]
# **Now you.** `match` is written but for one gap; `insert` and `evict` are all yours. Other data structures are welcome.


# %% answer="radix-tree"
class Node:
    """One edge, and what hangs at its end."""

    def __init__(self, tokens, parent, last_use):
        self.tokens, self.parent, self.last_use = tokens, parent, last_use
        self.children = {}  # by the first token of their edge


class RadixTree:
    def __init__(self):
        self.root = Node([], None, 0)
        self.clock = 0
        self.num_tokens = 0

    def match(self, tokens):
        return self.walk(tokens)[1]

    def walk(self, tokens):
        """The last node on the way, and how many tokens agree; what agrees is used, and is a path of whole nodes then."""
        self.clock += 1
        node, found = self.root, 0
        while found < len(tokens) and tokens[found] in node.children:
            child = node.children[tokens[found]]
            # [solution]
            length = 0
            while length < len(child.tokens) and tokens[found : found + 1] == child.tokens[length : length + 1]:
                length += 1
                found += 1
            # [stub]
            # raise NotImplementedError("how many tokens of this edge agree? Add them to found; then take this out")
            # length = ...
            # [end]
            if length < len(child.tokens):
                child = self.split(child, length)
            child.last_use = self.clock
            node = child
        return node, found

    def split(self, node, length):
        """Cut an edge in two; gives back the upper half. Both were used when the whole was."""
        upper = Node(node.tokens[:length], node.parent, node.last_use)
        node.parent.children[upper.tokens[0]] = upper
        node.tokens, node.parent = node.tokens[length:], upper
        upper.children[node.tokens[0]] = node
        return upper

    def insert(self, tokens):
        # [solution]
        node, found = self.walk(tokens)
        new = list(tokens[found:])
        if new:
            node.children[new[0]] = Node(new, node, self.clock)
        self.num_tokens += len(new)
        return len(new)
        # [stub]
        # raise NotImplementedError("walk down, and hang what is new at the end")
        # [end]

    def evict(self, count):
        # [solution]
        gone = 0
        while gone < count and self.root.children:
            leaf = min(self.leaves(), key=lambda node: node.last_use)
            cut = min(count - gone, len(leaf.tokens))
            first = leaf.tokens[0]
            del leaf.tokens[len(leaf.tokens) - cut :]
            if not leaf.tokens:
                del leaf.parent.children[first]
            gone += cut
        self.num_tokens -= gone
        return gone
        # [stub]
        # raise NotImplementedError("cut tokens off the end of the leaf that was used longest ago, until so many are gone")
        # [end]

    # [solution]
    def leaves(self):
        left = list(self.root.children.values())
        while left:
            node = left.pop()
            if not node.children:
                yield node
            left += node.children.values()

    # [stub]
    # [end]


# %%
check("radix-tree", RadixTree)

# %% [markdown]
# **Your tree beside the engine's cache** (optional; takes a few seconds). Before the engine admits a request, your tree says how much of its prompt
# it knows. The engine then uses its cached blocks only as far as your tree found them, and computes the rest again.

# %%
from course.grading.plug_in import OpenLab

lab = OpenLab(instead_of=globals().get("lab"))
ours = lab.run("chat")
# [solution]
yours = lab.run_with("chat", prefix_tree=RadixTree)
lab.beside(ours, yours)
# [stub]
# lab.serve_yours(ours, lambda: lab.run_with("chat", prefix_tree=RadixTree))
# [end]
