# %% [markdown]
# # 08 · Exercises: speculative decoding
#
# Write your answer where the stub tells you to, run its cell, then run the check below it. The check shows what you
# earned and what went wrong; run it as often as you like. `hint("...")` shows the next hint, which costs points.
#
# Unless an exercise says otherwise, change nothing that you are given, and keep nothing from one call for the next.

# %%
from course.lab import check, hint

# %% [markdown] exercise="expected-tokens-per-verify"
# ## Tokens per verify step, and how many to draft
#
# *expected-tokens-per-verify · lesson 08 · ●○○ · 20 minutes · 11 points*
#
# In **speculative decoding** a cheap draft proposes $k$ tokens, and the model checks all of them in one step (a **verify**
# step). Each draft token is accepted with probability $\alpha$; the first rejection discards everything after it. A verify
# step always yields one token of the model's own: the replacement of the rejected draft token or, if all were accepted, the
# token after the last (the **bonus token**).
#
# - `expected_tokens(alpha, k)`: how many tokens a verify step yields on average. $0 \le \alpha \le 1$; $k$ may be 0.
# - `speedup(alpha, k, draft_cost)`: tokens per unit of time, relative to plain decoding. A verify step takes as long as a
#   plain step, which yields one token; drafting one token takes `draft_cost` times as long.
# - `best_k(alpha, draft_cost, largest)`: the $k$ from 0 to `largest` (inclusive) with the largest speedup; if several
#   are equal, the smallest.

# %% [markdown]
# **A worked example.** $k = 2$, $\alpha = 0.8$: one token always comes; a second if the first draft token is accepted (0.8); a
# third if both are (0.64).

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
# ## Rejection sampling: verify drafts without changing the distribution
#
# *rejection-sampler · lesson 08 · ●●● · 45 minutes · 11 points*
#
# A draft model sampled token $x$ from its distribution $q$. The target model would have sampled from $p$. Leviathan et al.
# (2023) give a rule that keeps $x$ as often as possible, and whose output is distributed **exactly as $p$**:
#
# - accept $x$ with probability $\min(1, p(x) / q(x))$;
# - if it's rejected, sample from $\max(p - q, 0)$, normalized: where $p$ puts more mass than $q$ does.
#
# Write `verify(target, proposal, drafts, rng)`:
#
# - `drafts`: $k$ token ids, draft $i$ sampled from row $i$ of `proposal`; $k$ may be 0.
# - `target`: array [k + 1, V], the target model's distribution at each draft's position, and after the last.
# - `proposal`: array [k, V], the draft model's distributions. Rows sum to 1.
# - `rng`: a `numpy.random.Generator`, your only source of randomness: `rng.random()`, `rng.choice(V, p=...)`.
# - returns the output tokens: the accepted drafts in order, and one more: the replacement of the first rejected draft (nothing
#   follows it) or, if all were accepted, a sample from the last row of `target` (the bonus token).
#
# Don't modify the arrays.

# %% [markdown]
# **A worked example.** Three tokens, $p = (0.5, 0.3, 0.2)$, $q = (0.2, 0.2, 0.6)$. The draft model is overconfident in
# token 2: it proposes it with probability 0.6, and $0.2 / 0.6$ of those are accepted, so token 2 comes out with probability
# 0.2, as it should. The other 0.4 get a replacement from $\max(p - q, 0) = (0.3, 0.1, 0)$.

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
    """A token for the position of a rejected draft."""
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
    # raise NotImplementedError("draft by draft: is it accepted? and what comes after the last?")
    # [end]


# %%
check("rejection-sampler", verify)
