# %% [markdown]
# # 08 · Exercises: speculative decoding
#
# Write your answer where the stub tells you to, run its cell, then run the check below it. The check shows what you
# earned and what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.

# %%
from course.lab import check, hint

# %% [markdown] exercise="expected-tokens-per-verify"
# ## How many tokens a verify yields, and how many to draft
#
# *expected-tokens-per-verify · lesson 08 · ●○○ · 20 minutes · 11 points*
#
# In **speculative decoding** something cheap drafts $k$ tokens, and the model checks all of them in one step (a **verify**).
# Each draft passes with probability $\alpha$; the first that fails takes all behind it with it. The verify always yields
# one token of the model's own: the one that replaces the failed draft, or, when all passed, the one after the last (the
# **bonus**).
#
# - `expected_tokens(alpha, k)`: how many tokens a verify yields on average. $\alpha$ goes from 0 to 1, both included; $k$ may
#   be 0.
# - `speedup(alpha, k, draft_cost)`: tokens per unit of time, compared with plain decoding. A verify takes as long as a plain
#   step, which yields one token; each draft takes `draft_cost` of that.
# - `best_k(alpha, draft_cost, largest)`: the $k$ from 0 to `largest`, both included, with the largest speedup; of equal ones
#   the smallest.

# %% [markdown]
# **A worked example.** $k = 2$, $\alpha = 0.8$: one token comes always; a second one if the first draft passed (0.8); a third if
# both did (0.64).

# %%
alpha = 0.8
1 + alpha + alpha**2

# %% [markdown]
# **Now you.**


# %% answer="expected-tokens-per-verify"
def expected_tokens(alpha, k):
    # [solution]
    return sum(alpha**passed for passed in range(k + 1))
    # [stub]
    # raise NotImplementedError("the example, for any k")
    # [end]


def speedup(alpha, k, draft_cost):
    time_of_a_round = k * draft_cost + 1
    # [solution]
    return expected_tokens(alpha, k) / time_of_a_round
    # [stub]
    # raise NotImplementedError("what does a round of this length yield?")
    # [end]


def best_k(alpha, draft_cost, largest):
    # [solution]
    return max(range(largest + 1), key=lambda k: speedup(alpha, k, draft_cost))
    # [stub]
    # raise NotImplementedError("which k has the largest speedup?")
    # [end]


# %%
check("expected-tokens-per-verify", expected_tokens, speedup, best_k)

# %% [markdown] exercise="rejection-sampler"
# ## Verify drafts without changing the distribution
#
# *rejection-sampler · lesson 08 · ●●● · 45 minutes · 11 points*
#
# A draft model drew token $x$ from its distribution $q$. The model itself would have drawn from $p$. Leviathan and others
# (2023) found a rule that uses $x$ as often as possible, and whose output is distributed **exactly as $p$**:
#
# - $x$ passes with probability $\min(1, p(x) / q(x))$;
# - if it fails, draw a token from $\max(p - q, 0)$, divided by its sum. That is what $p$ has more of than $q$.
#
# Write `verify(target, proposal, drafts, rng)`:
#
# - `drafts`: $k$ token ids, draft $i$ drawn from row $i$ of `proposal`; $k$ may be 0.
# - `target`: array [k + 1, V], the model's distribution at each draft's place, and after the last draft.
# - `proposal`: array [k, V], the draft model's distributions. Rows sum to 1.
# - `rng`: a `numpy.random.Generator`, the source of all your luck: `rng.random()`, `rng.choice(V, p=...)`.
# - returns the tokens that come out: the drafts that passed, in order, and one more. That is the replacement of the first
#   draft that failed, after which nothing follows; or, when all passed, a draw from the last row of `target` (the bonus).
#
# Leave the arrays as they are.

# %% [markdown]
# **A worked example.** Three tokens, $p = (0.5, 0.3, 0.2)$, $q = (0.2, 0.2, 0.6)$. The draft likes token 2 too much: drawn with
# 0.6, it passes with $0.2 / 0.6$, so it comes out with probability 0.2, as it should. In the other 0.4 of all cases, a
# replacement: $\max(p - q, 0) = (0.3, 0.1, 0)$.

# %%
import numpy as np

p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
passes = q * np.minimum(1, p / q)
left_over = np.maximum(p - q, 0)
passes + (1 - passes.sum()) * left_over / left_over.sum()  # p again

# %% [markdown]
# **Now you.** `replacement` has one gap; `verify` is all yours.


# %% answer="rejection-sampler"
import numpy as np


def replacement(p, q, rng):
    """A token for a place where the draft failed."""
    # [solution]
    left_over = np.maximum(p - q, 0)
    # [stub]
    # raise NotImplementedError("which distribution is it drawn from?")
    # left_over = ...
    # [end]
    return int(rng.choice(len(p), p=left_over / left_over.sum()))


def verify(target, proposal, drafts, rng):
    # [solution]
    tokens = []
    for p, q, draft in zip(target, proposal, drafts):
        if rng.random() * q[draft] >= p[draft]:
            return [*tokens, replacement(p, q, rng)]
        tokens.append(int(draft))
    return [*tokens, int(rng.choice(len(target[-1]), p=target[-1]))]
    # [stub]
    # raise NotImplementedError("draft by draft: does it pass? and what comes after the last?")
    # [end]


# %%
check("rejection-sampler", verify)
