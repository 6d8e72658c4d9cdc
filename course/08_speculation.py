# %% [markdown]
# # 08 · Speculative decoding
#
# "It guesses four tokens, and most of them are right: so it must be about three times as fast." It was not, on a full
# server it was slower, and somebody asks whether the answers are still the same. In this lesson you watch guesses being
# checked, and find out when checking them pays.
#
# You will be able to work out the speedup from three numbers, to name the acceptance at which it breaks even on a given
# server, and to say why the text cannot change.
#
# - **Surface**: guesses, checked token by token, and a bet on what they are worth.
# - **Guided**: the right formula and the popular one; what checking costs; copying, chat and verse; gates; 70 billion weights.
# - **Deep dive**: why nothing is lost, the code, five claims.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.lesson_08 import acceptance, bets, costs, overlap, price, served, short, sim_70b, tiles, traffic, watch
from course.lab.lesson_08.checks import checks
from course.lab.lesson_08.claims import a14, d4, d5, d6, f2, quantized_or_drafted

lab = open_lab()

# %% [markdown]
# ## Surface
#
# A model writes one token a step, and a step with few requests waits for memory: all weights come in for one token's sake
# (lesson 06). Checking five tokens in one step reads the same weights once. (Each token that a step computes is a
# **row**; five rows, one reading.) So:
#
# - **Draft.** Something cheap guesses the next few tokens: a small model, a trained head on the model itself, or a look at
#   the text so far ("the last time these words came, what followed?": **n-gram lookup**).
# - **Verify.** One step of the model computes what *it* would have written after each of them. Guesses that agree are kept, up to the
#   first that does not. In that one's place comes the model's own token, which the same step has computed. If all
#   agree, the model's own comes on top.
#
# Here it is, on the real engine. Move the handle, or press play.

# %%
told = watch.stories(lab)
tiles.StoryPlayer(told)

# %% [markdown]
# Things to look for:
#
# - A step in which all guesses pass: how many tokens come out of it?
# - A step in which the first guess fails. Does anything come out? What happens to the guesses behind it?
# - The two lanes below: the same tokens, in fewer steps. Is there a step that yields none?
# - The second answer. What does looking up find in a chat?
#
# ### Predict
#
# **Acceptance**, α, is the chance of a guess to pass if those before it have. Say α = 0.6, drafts of k = 4 tokens, and each guess
# costs a tenth of a decode step.

# %%
bet = lab.predict("alone", f"{bets.QUESTION} One reader, this machine: how much faster?", list(bets.GAINS))
bet

# %%
point = acceptance.Point.of(traffic.made_up(lab, bets.ALPHA, bets.K))
checking = costs.measure(lab)
bet.score(bets.alone(point, checking))

# %% [markdown]
# Three numbers decide: how many tokens a verification *yields*, what it *costs* beside a plain step, and what the *drafts* cost. The
# surface in one sentence: *speculation trades spare arithmetic for fewer readings of the weights, and it pays while there
# is arithmetic to spare and the guesses are good.*

# %% [markdown]
# ## Guided
#
# ### What a verification yields
#
# A guess counts only if all before it passed. The first passes with α, the second with α², and so on; the model's own token
# always comes. So a verification yields 1 + α + α² + … + α^k tokens. Often one reads "k × α" instead.
#
# To test that, drafts are needed that pass as often as we please. The engine has them (`synthetic`): the model itself drafts, and
# errs on purpose. That gains no time, but it puts the formulas to the test.

# %%
points = acceptance.sweep(lab)
acceptance.draw_places([acceptance.longest(points), point])

# %% [markdown]
# Later places are reached less and less often: that is what k × α forgets. It forgets the model's own token, too, so it says too
# little where few pass, or nearly all do, and too much for long drafts between. Add points of your own; each press is a run.

# %%
acceptance.AcceptanceLab(lab, [point, *points])

# %% [markdown]
# ### What a verification costs
#
# Checking is free only as long as the step waits for memory. How free is it here? Plain steps and steps that check made-up guesses, by
# turns, at several batches. In each row, the later columns say how many plain steps one verification takes.

# %%
costs.costs_table(checking)

# %% [markdown]
# Now all three numbers together, for every batch.

# %%
price.price_lab(checking)

# %% [markdown]
# Things to find:
#
# - α = 0.6 and a guess at 0.1 steps: which k is best at batch 1? (The title tells it; try first.)
# - Free guesses (c = 0), and every one passes. Is there a batch at which it still loses here?
# - c = 1, as if the model drafted for itself. Can that ever gain?
# - The acceptance at which it gains nothing. Is it 50%? Does it depend on the batch?
#
# ### Copying, chat and verse
#
# Looked-up guesses cost next to nothing. Whether they pass depends on the text: copying a paragraph, everyday questions,
# verse whose words are drawn at temperature 1. Each is served three ways, one request at a time: without drafts; *always* drafting; and with
# the engine's **gates**, which watch what passes and decide whether and how far to draft.

# %%
work = [traffic.one_by_one(lab, kind) for kind in traffic.KINDS]
ways = {served.WITHOUT: traffic.OFF, "always": traffic.ALWAYS, "gates": traffic.SHIPPED}
kinds = served.compare(lab, work, ways)
served.served_table(kinds)

# %%
served.draw_strips(kinds)

# %% [markdown]
# Each column is one step: at the bottom the model's own token, above it guesses that passed, hatched the ones that did not. Compare
# "always" with "gates" for chat and verse. The gates are fields of `speculative`:
#
# | field | drafts nothing when |
# |---|---|
# | `acceptance_floor` | guesses pass too seldom to be worth a row (and now and then it tries again) |
# | `adaptive_k` | (drafts shorter, not nothing) a place so far out is unlikely to be reached |
# | `max_batch` | so many requests run that no arithmetic is to spare |
# | `min_output_tokens` | the answer is to be short |
#
# ### Where it hurts: a full batch
#
# Copying is the best case for looking up. Sixteen readers copy at once (fewer in the short form), and the gates are held
# open. Commit yourself.

# %%
crowd = lab.predict("crowd", "Many copy at once, gates open. Each request decodes:", list(bets.CROWDED))
crowd

# %%
together = served.compare(lab, [traffic.crowd(lab, at_once=16)], ways)
crowd.score(bets.crowded(together))

# %%
served.served_table(together)

# %% [markdown]
# With sixteen in the step the weights are shared already. Is there arithmetic to spare for the guesses? If "always" lost, there
# was none: each guess is a row that must be multiplied like any other. What the guesses earn has not changed, what they cost
# has. If it still gained, sixteen may be few for this machine, as for a large GPU. The third row is the gates' answer. Their
# limits are a CPU's, where one more row is expensive: where "always" gains, they may give the gain away. A gate is only as
# good as the price that it assumes.
#
# ### Where it hurts: short answers
#
# The shorter the answer, the less there is to gain. What is there to lose? Looking up reads nothing beforehand.

# %%
brief = short.measure(lab)
served.served_table(brief)

# %% [markdown]
# A *draft model* does: before its first guess it has to read the prompt itself. Where guesses pass often, the first token or
# two pay for the reading (claim D6, below: 70B with a 1B drafter, at an acceptance of 0.7); where every token loses, no length
# does. So the length is not what decides; acceptance is. A draft model has another cost that no table here shows:
# its weights and its KV cache take memory, and on a server that is short of KV blocks this means fewer requests at once.
#
# ### The same at 70 billion weights
#
# Llama-3 70B on four H100s, simulated, drafts by a 1B model on the same GPUs or looked up. Same formula, other prices.

# %%
sim_70b.load_lab()

# %% [markdown]
# Things to find:
#
# - Which of the two drafters keeps its gain longest as the batch grows? Why does the other one fall sooner?
# - The stack of 2023, without CUDA graphs: a 1B model has few bytes to read, yet its steps are not cheap there. What are they made of?
# - Contexts of 4096: a verification reads the KV of a request once for all its rows (in the simulator; the lab's engine
#   reads it once for each row). Does the gain last longer?
#
# How far to trust today's stack stands below. The picture leaves out the time the draft model takes to prefill prompts.

# %%
simulated_70b.error_band(sim_70b.stack(sim_70b.TODAY))

# %% [markdown]
# ## Deep dive
#
# **Why nothing is lost, greedy.** A guess passes only if it is the very token that the model would have chosen. Are the answers
# from above the same texts? Claim D5 counts them.

# %%
d5(told)

# %% [markdown]
# (In 16 bits, two tokens can be so close that the order of a sum decides. Then texts may part, as between any two batch sizes.
# In 32 bits the tests of this engine hold it to the token.)
#
# **Why nothing is lost, sampled.** Let the model's distribution of the next token be $p$, and the drafter's $q$. A guess
# $x$, drawn from $q$, passes with probability $\min(1, p(x)/q(x))$. If it fails, the token is drawn from what $q$ had too little
# of: $\max(p - q, 0)$, scaled to 1. Token $x$ then comes out with probability
#
# $$\min(p, q)(x) + \Bigl(1 - \sum_y \min(p, q)(y)\Bigr) \cdot \frac{\max(p - q, 0)(x)}{\sum_y \max(p - q, 0)(y)} = p(x), \qquad
# \alpha = \sum_y \min(p, q)(y)$$
#
# Make the drafter as bad as you like: it costs passes, never the distribution. Then try the other two rules.

# %%
choice = overlap.Choice.after(lab)
overlap.overlap_lab(choice)

# %% [markdown]
# The blue line is the real model's, after a few real words. Points on it mean that nothing is lost. **Total variation**, the
# number in the title, is the
# largest difference in probability that any set of tokens can have. Even plain samples are not at 0, since samples are
# finite. So the yardstick is what plain sampling of equal size gives: *within* is the farthest of a thousand plain
# samples.
#
# **The arithmetic.** With $c$ the price of a guess and $v$ that of a verification, both in decode steps:
#
# $$\text{speedup} = \frac{1 + \alpha + \dots + \alpha^k}{v + k\,c} = \frac{1 - \alpha^{k+1}}{(1 - \alpha)(v + k\,c)}$$
#
# - The paper's formula has $v = 1$: a step that waits for memory.
# - Longer drafts: the place $k$ adds $\alpha^k$ tokens and costs $c$ and a row. So there is a best $k$, and it is small unless α is high.
# - No draft yields more than $1/(1-\alpha)$ tokens: 2.5 at 0.6, 10 at 0.9.
# - α is a mean. Real guesses pass in runs: a copied passage, then nothing. So measured places need not follow powers of α.
#
# **The code.** What decides how far a request drafts, and what checks a guess that was drawn:

# %%
import inspect

from minillm.runner.rejection_sampler import check_drawn
from minillm.speculation.draft_length import DraftLength

print(inspect.getsource(DraftLength.num_drafts))
print(inspect.getsource(check_drawn))

# %% [markdown]
# **Other drafters.** EAGLE and Medusa train a small head on the model's own hidden states. This engine has such a head
# (`speculative.method=draft_head`), and a trained one comes with it for the default model.
# Where one is there, the player at the top shows it, too.
#
# **The other four claims, measured.** Speculation before quantization?

# %%
first = quantized_or_drafted(lab)
a14(first)

# %%
d4(checking)

# %%
d6(brief, short.pay_backs(sim_70b.stack(sim_70b.TODAY)))

# %%
f2([point, *points])

# %% [markdown]
# ## Say it in an interview
#
# > "A decode step at small batch waits for memory, so checking a few guesses in it is nearly free. Each verification yields one plus α
# > plus α squared and so on tokens; I divide by what it costs to check and to draft, and that tells me k and whether it pays. It is
# > lossless, greedy or sampled, and a failed guess wastes its row and what it cost to draft. It fades as the batch grows and the arithmetic
# > runs out, so I gate it on load and on measured acceptance. I would ask for acceptance by kind of traffic before anything."
#
# ## Check yourself
#
# Replace the dots. Keys come from the formula, from the costs measured above, and from the answers that you watched.

# %%
check = checks(checking, told)

# α = 0.8, k = 5: how many tokens does a verification yield, in the mean?
check("q1", ...)

# %%
# the same, a guess costs 0.05 steps, checking is as cheap as a plain step: what is the speedup?
check("q2", ...)

# %%
check("q3", ...)  # the very first guess fails. What does the step yield: "nothing", "one token", "the draft again"?

# %%
# free drafts of 4, this machine, the largest batch that was measured: at which acceptance
# does it break even (0.35 or 35), or "never"?
check("q4", ...)

# %%
# the first answer that you watched (copying): how many guesses passed, in all?
check("q5", ...)

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Your acceptance.** It depends on your model, your drafter and your traffic. Measure it by kind of request; a mean over all of
#   them hides the kinds on which to switch it off.
# - **Your price of checking.** On a CPU there is little arithmetic to spare, and it stops paying early. A GPU has far more. All prices
#   here were measured on short contexts, beside plain steps that were not planned ahead, as they would be without drafts.
# - **Trees.** Some drafters check several continuations at once. The engine checks one.
# - **Overlap.** On a GPU, a scheduler that plans the next step while this one runs hides its own work. With drafts, this engine has to
#   wait for each step first, and loses that.
# - **Noise.** Factors near 1 are noise. Run a cell twice before you believe one.
#
# ## Sources
#
# - Claims: *Serving LLMs: The Latency Anatomy Framework* (A14); an article on techniques for lower latency (D4, D5, D6); an
#   article on latency in three layers (F2).
# - The rule and its proof: Leviathan, Kalman and Matias, *Fast Inference from Transformers via Speculative Decoding*, 2023; Chen et al.,
#   *Accelerating Large Language Model Decoding with Speculative Sampling*, 2023. Prompt lookup: Saxena, 2023. Heads: Cai et al. (Medusa)
#   and Li et al. (EAGLE), 2024.
