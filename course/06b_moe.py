# %% [markdown]
# # 06b · Mixture of experts, MLA and parallelism
#
# A dense model's decode step reads all the weights once (lesson 06). Most large open models today are mixtures of
# experts, and for them that's false. Here you'll see which experts a step reads, what that does to ITL, why experts
# are spread over many GPUs, and why the KV cache then has to be spread another way.
#
# - **Five minutes** (five): which weights does a step of a mixture of experts read? A bet.
# - **The lab** (ten): ITL, expert parallelism over a few GPUs and over many, latent attention.
# - **In the interview** (ten): the line, its follow-ups, a derivation; then the check.
# - **Going deeper** (five, optional): which part of a step grows, the arithmetic, and a reference.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.display import stack
from course.lessons.lesson_06 import simulated
from course.lessons.lesson_06b import pictures, run, words
from course.lessons.lesson_06b.check import checks

lab = open_lab()

# %% [markdown]
# ## Five minutes
#
# After attention, each layer of a model has an MLP (its feed-forward part), where most of its weights are. In a
# **mixture of experts** (MoE) that's many small MLPs, the **experts**, and a **router** sends each token to a few of
# them. In Qwen3 30B-A3B it's 8 of 128 in each layer. The model stores 30 billion parameters, and a token is multiplied
# by about 3 billion. A single request reads only those. But a batch activates the experts of *all* its tokens.
#
# ### Predict
#
# The engine here runs such models. This one is tiny and has random weights, but it's built like Qwen3 30B-A3B: a router
# sends each token to 8 of 128 experts.

# %%
share = lab.predict(
    "share",
    "64 requests decode together, 8 of 128 experts each. What share of a layer's experts does a step read?",
    unit="%",
    between=(6, 100),
)
share

# %%
found = run.routed(lab)  # a counter behind every router of the engine
share.score(run.share_bet(found))

# %%
stack(pictures.draw_share(found, "Qwen3 30B-A3B", run.BET), words.shares(found))

# %% [markdown]
# This gives two regimes. With a request or two an MoE decodes at the cost of a small model. With a few dozen it reads
# most of its weights, and what it saves is arithmetic. Compare models: how many tokens does it take until most experts
# are read?

# %%
pictures.share_explorer(found)

# %% [markdown]
# <details><summary>What to look for</summary>
#
# Mixtral (2 of 8) reads most of its experts from a batch of four on. DeepSeek-V3 (8 of 256) takes about 36 tokens for
# the same share. At 128 tokens it has only four tokens per expert, and a product of four rows makes poor use of a GPU's
# arithmetic. That's why such models want very large batches, and many GPUs that share them.
#
# </details>
# <details><summary>Why would an engine read fewer experts than the dashed curve?</summary>
#
# The curve, 1 − (1 − k/E)^B with k of E experts per token and B tokens, assumes that tokens choose independently, and
# that all experts are equally likely. This run breaks the first assumption, because its prompts are the beginnings of
# 16 questions with a number in front, so a batch of 64 has four near-copies of each, which are sent to much the same
# experts. It may break the second, too. A router is one fixed matrix, and if the hidden states share a direction, the
# same experts score high for all tokens.
#
# Look at batch 16 in the chart, where no question occurs twice. If the measured point is below the curve already, the
# copies can't be the whole reason.
#
# </details>
#
# ## The lab
#
# ### What it does to ITL
#
# Two models take about the same memory, on two simulated H100s. Every token of the dense one uses all its weights.

# %%
stack(pictures.dense_table(), simulated_70b.error_band(simulated.stack(simulated_70b.TODAY, pictures.PAIR[0], tp=2)))

# %% [markdown]
# The gain is large for a single request and small in the middle, where the MoE reads nearly as many bytes per step. It
# grows again at large batch, where the dense model has 2.7 times as much KV per token to read, and beyond a batch of
# about 300 its linear layers become compute-bound.
#
# **It loses on memory.** All experts have to be resident, so an MoE that can be as fast as a 3B model needs the memory
# of a 30B one. At low traffic you pay for weights that few tokens use. So the weights go on several GPUs, and the next
# question is how to cut them.
#
# ### Expert parallelism
#
# **Tensor parallelism** (TP) cuts every expert into slices, and narrow experts become very narrow. **Expert
# parallelism** (EP) gives each GPU whole experts. A token's hidden state then has to reach its experts. With TP
# attention every GPU has it already, and one all-reduce adds the results up, as before. With data parallel attention
# (below) it travels there and back, in two **all-to-alls** (each GPU sends to all others) per layer. Either way, a
# layer takes as long as its slowest GPU.

# %%
pictures.imbalance()

# %% [markdown]
# <details><summary>Which imbalance counts, that of rows or that of experts read?</summary>
#
# In decode, an expert with a few rows is memory-bound, so a GPU's time depends on how many *experts it reads*, and
# from a few dozen tokens on, that's nearly the same on all GPUs. Rows count once experts have enough of them to be
# compute-bound, in prefill and at very large batches. By then chance has averaged out, but popularity hasn't: with 1.5
# times the even share, GPU 0 stays the straggler at any batch. The cure is to replicate popular experts, or move them.
#
# </details>
#
# ### Wide EP, in numbers
#
# Why spread one model over dozens of GPUs? The table has DeepSeek-V3, its weights in fp8 and 64 tokens per GPU in each
# step. Change that number, and find how many GPUs it takes before an expert's product is compute-bound, at about 206
# rows on an H200 in fp8.

# %%
pictures.wide_ep_table(tokens_per_gpu=64)

# %% [markdown]
# With more GPUs, each reads fewer expert weights per step and has more memory for KV, and each expert gets more rows.
# What a GPU sends doesn't shrink, and beyond one node it crosses the network, so wide EP overlaps two half-batches: one
# computes while the other's all-to-all is on the wire.
#
# <details><summary>Where 206 comes from, and who runs this</summary>
#
# In fp8, a weight is one byte and two FLOPs per row: 1,979 TFLOP/s over twice 4.8 TB/s.
#
# LMSYS served DeepSeek on 96 H100s this way at 22,300 output tokens a second per node, up to five times what plain TP
# gave. DeepSeek's own report decodes over 320 GPUs and prefills over 32, since prompts bring enough tokens by
# themselves.
#
# </details>
#
# ### Latent attention: less KV per token
#
# **Multi-head latent attention** (MLA) keeps one compressed vector per token and layer, for all heads. Prefill expands
# it into keys and values. In decode the expansion is folded into the projections around attention, so a step reads
# only the vector. For DeepSeek-V3's layers and heads, in 16 bits:

# %%
pictures.kv_table()

# %% [markdown]
# That's less than a third of GQA with eight heads, at the quality of full attention (according to MLA's authors). But
# TP splits the KV cache by heads, and a latent vector has no heads to split. There are three ways to spread attention,
# here on eight GPUs:
#
# | attention | KV on each GPU | cost | good for |
# |---|---|---|---|
# | TP | **a copy of all of it** | KV memory | low traffic, low latency |
# | **Data parallel attention** (DP attention) | that of its own requests | attention weights on every GPU; a request's attention runs on one GPU | high traffic |
# | **Decode context parallelism** (DCP), within a TP group | every eighth *position* of every request | an exchange in every attention layer, to merge the partial results exactly | long contexts |

# %%
pictures.latent_room()

# %% [markdown]
# ## In the interview
#
# **The line**
#
# > "An MoE step reads whichever experts its tokens activate: with 8 of 128, that's 6% for one request and most for 64.
# > Small batches read the active parameters, large ones nearly everything. At scale, I'd run MLA attention
# > data-parallel with wide EP."
#
# **Follow-ups**
#
# <details><summary>"Does speculation pay on an MoE?"</summary>
#
# Less than on a dense model, at small batch. In a dense model a second query token reads the same weights. Here it
# activates other experts, so a single request's step with one draft token reads almost twice as many. At large batch
# most experts are read anyway, so drafts (say from MTP, a multi-token prediction head) cost little until the experts
# are compute-bound.
#
# </details>
# <details><summary>"Is MLA decode memory-bound?"</summary>
#
# I'd count per GPU. In DeepSeek-V3's decode all 128 heads attend to one latent vector: 128 × 2 × (576 + 512) FLOPs for
# 576 × 2 bytes, some 240 per byte, close to an H100's bend at 295. Under TP 8 a GPU has 16 of the heads, so it's about
# 30, memory-bound like any attention. With DP attention and one MTP draft, two query tokens share the bytes. That's
# about 480, so it's *compute-bound* in decode.
#
# </details>
#
# **"How would you serve DeepSeek-V3?"**
#
# | weak | senior | staff |
# |---|---|---|
# | "TP 8 on one node." | "EP with data parallel attention, since TP copies the latent KV." | "It depends on traffic. If it's low and latency matters, TP 8, with DCP for long contexts. If it's high, I'd disaggregate prefill and decode, run DP attention with EP as wide as the fast links reach, and replicate hot experts. Then I'd watch balancedness and tokens per expert." |
#
# **Three numbers to know cold**

# %%
words.three_numbers()

# %% [markdown]
# **On the whiteboard**
#
# <details><summary>What share of the experts does a batch read, and when is an expert compute-bound?</summary>
#
# 1. A token skips a given expert with probability 1 − k/E.
# 2. B tokens that choose independently all skip it with (1 − k/E)^B. So a step reads 1 − (1 − k/E)^B of them, and
#    fewer if tokens have favourites in common.
# 3. With 8 of 128 that's 6% for one token, 40% for 8, 98% for 64.
# 4. An expert gets B k / E rows on average: 4 at 64 tokens.
# 5. Its product is compute-bound from about F/M rows on (FLOP/s over bytes/s), 295 on an H100 in 16 bits.
# 6. So the knee of an MoE is E/k times a dense model's: B ≈ 295 × 16 for 8 of 128. Only wide EP brings such batches
#    together.
#
# </details>
#
# ## Check yourself

# %%
check = checks()
check.card()

# %% [markdown]
# ## Going deeper
#
# ### Which part of a step grows?
#
# Vary context and card. The picture is simulated. This engine itself, on a single H100, took 4.1 ms for the MoE's step
# at batch 1, 10.8 at 8 and 22.8 at 64 ([measured](../docs/measured.md#On-an-H100)): 50, 81 and 92% of what the memory's
# bandwidth allows.

# %%
simulated.step_parts("Qwen3 30B-A3B (MoE)")

# %% [markdown]
# ### The arithmetic
#
# The whiteboard's formula, with the tokens behind it: with $E$ experts, $k$ per token, and $B$ tokens in a step, a step
# is expected to read
#
# $$E\left(1 - (1 - k/E)^B\right) \text{ experts per layer, with } \frac{B\,k}{E} \text{ tokens for each on average.}$$
#
# So the knee of an MoE is at a batch $E/k$ times that of a dense model: 16 times for Qwen3 30B-A3B, 32 times for
# DeepSeek-V3.
#
# KV bytes per token and layer, $b$ bytes per number: $2 h\,d\,b$ for MHA ($h$ heads of $d$ numbers), $2 g\,d\,b$ for
# GQA with $g$ groups, $(d_c + d_r)\,b$ for MLA with a latent of $d_c$ and a rotated key of $d_r$ numbers. On $n$ GPUs
# under TP, GQA takes $2 g\,d\,b / n$ on each as long as $n \le g$. MLA takes all of it on each, or $1/m$ of it with
# DCP of size $m$.
#
# This is how the engine computes a layer of experts (`minillm/model/moe.py`):

# %%
import inspect

from minillm.model.moe import ExpertRouter, MoE

print(inspect.getsource(ExpertRouter.forward))
print(inspect.getsource(MoE.forward))

# %% [markdown]
# ### Reference
#
# You don't need any of this for the interview. Look it up when you deploy one.
#
# <details><summary>Flags of vLLM and SGLang, and where each loses</summary>
#
# | | vLLM | SGLang | where it loses |
# |---|---|---|---|
# | EP | `--enable-expert-parallel` (experts over TP × DP GPUs) | `--ep-size`, `--moe-a2a-backend deepep` | where the all-to-all's latency is more than it saves: measure it against TP |
# | hot experts | `--enable-eplb`, `--eplb-config '{"num_redundant_experts": 32}'` | `--enable-eplb`, `--ep-num-redundant-experts 32` | copies take memory |
# | DP attention | `--data-parallel-size 8 --enable-expert-parallel`, with `--tensor-parallel-size 1` | `--tp 8 --dp 8 --enable-dp-attention` (deprecated in 0.5.23 for `--attn-dp-size`) | at low load: a request's attention runs on one GPU of eight |
# | DCP | `--tensor-parallel-size 8 --decode-context-parallel-size 8` | `--tp 8 --dcp-size 8` | at short contexts |
#
# - vLLM's `--all2all-backend` changes nothing without data parallelism, since there's no all-to-all. With it:
#   `allgather_reducescatter` by default, `deepep_low_latency` for decode across nodes, `deepep_high_throughput` for
#   prefill.
# - Published figures don't all point one way: TensorRT-LLM had EP ahead of TP for a single request
#   ([docs](../docs/simulator.md)).
# - With DP attention, experts tie all **ranks** (the GPUs of the group) together. Every step takes as long as the rank
#   with the most work, and a rank without requests runs dummy passes. Prefix caches are one per rank, so send a
#   conversation back to its rank. TensorRT-LLM calls it attention DP.
#
# </details>
#
# <details><summary>Context and pipeline parallelism</summary>
#
# **Context parallelism** splits a long prompt's tokens over GPUs; keys and values are passed from GPU to GPU (ring
# attention), or heads are exchanged by all-to-all (Ulysses). It shortens the prefill of very long prompts. In decode
# there's one new token, so what can be split is the KV it attends to: DCP, above.
# (*Sequence* parallelism is something else: Megatron's way to split norms and their activations between all-reduces.)
#
# **Pipeline parallelism** gives each GPU whole layers. Activations are handed on once per stage, so slow links between
# servers are fine. For **ITL** it buys nothing, since a token still goes through all stages, one after the other. See
# it with `minillm simulate --model llama-3-70b --hardware h100-sxm --tp 1 --pp 4 --qps 1 --traffic chat`, and again
# with `--tp 4 --pp 1`. It does shorten the **TTFT of a long prompt**, whose chunks follow each other through the
# stages ([05b](05b_disaggregation.ipynb) has the table). Our simulator doesn't model that. There, a chunk waits until
# the one before has left the last stage.
#
# Rule of thumb: TP inside the NVLink domain, EP with DP attention for large MoEs, PP across servers when the model
# doesn't fit one, or for the prefill of very long prompts.
#
# </details>
# <details><summary>What large deployments add</summary>
#
# - **Shared experts** see every token, so they behave like a dense MLP; **group-limited routing** lets a token choose
#   experts on a few nodes only, which bounds what the all-to-all sends between nodes.
# - **Grouped products** (DeepGEMM's, for one) run all experts of a GPU in one kernel: with a *masked* layout of fixed
#   size for decode, so that CUDA graphs can record it, and a contiguous one for prefill.
# - **Fewer bits for experts**: they're most of the weights. gpt-oss ships them in MXFP4, so its 120B fits one 80 GB
#   GPU.
# - **Other ways to spend less on KV**: sparse attention reads a chosen part of the KV (fewer reads, same memory);
#   linear attention in most layers keeps a state per request instead of KV per token ([lesson
#   06c](06c_linear_attention.ipynb)).
#
# </details>

# %% [markdown]
# <details><summary>The same on vLLM and SGLang</summary>
#
# ```sh
# vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size 2 --enable-expert-parallel \
#     --enable-eplb --eplb-config '{"log_balancedness":true}'
# sglang serve --model-path Qwen/Qwen3-30B-A3B --tp-size 2 --ep-size 2 \
#     --expert-balancedness-report-mode prometheus --enable-metrics --port 8000
# vllm bench serve --model Qwen/Qwen3-30B-A3B --random-input-len 512 --random-output-len 256 --ignore-eos \
#     --max-concurrency 1 --num-prompts 20
# ```
#
# Repeat it with more `--max-concurrency`, and with a dense model as large (`Qwen/Qwen3-32B`). A single request's ITL
# follows the active parameters, so the MoE should be ahead. With more requests its ITL should climb earlier than the
# dense model's, because each token activates other experts. `GPU KV cache size` at start (SGLang:
# `max_total_num_tokens`) shows what's left once *all* experts are loaded.
#
# Balance is logged as `balancedness` (mean load over the largest; 1 is even) or kept in `sglang:eplb_balancedness`.
# It should rise with the batch, and fall when all traffic is about one subject.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Real routing.** The measured router is random. Trained ones have favourites by topic and language; log them
#   (vLLM: `"log_balancedness": true`).
# - **Slices or whole experts: which is faster?** The simulator doesn't model how much faster whole experts multiply,
#   or the overlap of communication with compute, so we don't ask it. Measure both.
# - **DeepSeek's ITL.** Here only its memory is computed; the simulator's floor for it is too low
#   ([why](../docs/simulator.md)).
#
# ## Sources
#
# - MoE: Shazeer et al., 2017; Jiang et al., *Mixtral of Experts*, 2024; *Qwen3 Technical Report*, 2025. Expected
#   experts: Huang et al., *MoESD*, 2025 (arXiv 2505.19645). Expert parallelism: Lepikhin et al., *GShard*, 2020.
# - MLA: *DeepSeek-V2*, 2024 (arXiv 2405.04434); experts over many GPUs and redundant copies: *DeepSeek-V3 Technical
#   Report*, 2024. Wide EP on H100s: LMSYS blog, *Deploying DeepSeek with PD Disaggregation and Large-Scale Expert
#   Parallelism on 96 H100 GPUs*, May 2025 (prompts of 2,000 tokens).
# - DP attention: *SGLang v0.4* (LMSYS blog, December 2024) and SGLang's guide *DP, DPA and SGLang DP Router*. Flags:
#   vLLM's documentation, *Expert Parallel Deployment*, *Data Parallel Deployment* and *Context Parallel Deployment*;
#   SGLang's *Expert Parallelism* and *Decode Context Parallelism*. Chunks in a pipeline: SGLang's *Pipeline
#   Parallelism for Long Context*.
# - Ring attention: Liu et al., 2023. Ulysses: Jacobs et al., 2023. Pipelines: Huang et al., *GPipe*, 2019.
