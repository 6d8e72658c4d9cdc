# %% [markdown]
# # 06b · Mixture of experts, MLA and parallelism
#
# Lesson 06 said that a decode step reads all the weights once. Most large open models today are mixtures of experts,
# and for them that's false. Many also compress their KV, and that changes how you spread them over GPUs.
#
# - **Surface** (ten minutes, runs included): which weights does a step of a mixture of experts read?
# - **Guided** (ten): what that does to ITL, expert parallelism, latent attention, and data parallel attention.
# - **Deep dive** (five): the arithmetic; sequence and pipeline parallelism in an appendix.

# %%
from course.lab import open_lab, simulated_70b
from course.lab.display import stack
from course.lessons.lesson_06 import simulated
from course.lessons.lesson_06b import pictures, run, words
from course.lessons.lesson_06b.check import checks

lab = open_lab()

# %% [markdown]
# ## Surface
#
# After attention, each layer of a model has an MLP (its feed-forward part), where most of its weights are. In a
# **mixture of experts** (MoE) that's many small MLPs, the **experts**, and a **router** sends each token to a few of
# them: in Qwen3 30B-A3B, 8 of 128 in each layer. The model stores 30 billion parameters, and a token is multiplied by
# about 3 billion. A lone request reads only those. But a batch activates the experts of *all* its tokens.
#
# ### Predict
#
# The engine here runs such models. This one is tiny and has random weights, but the same router: 8 of 128 experts per
# token.

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
# Two regimes follow. With few requests an MoE decodes at the cost of a small model. With many, it reads nearly all of
# its weights, and what it saves is arithmetic. Compare models: how many tokens does it take until most experts are
# read?

# %%
pictures.share_explorer(found)

# %% [markdown]
# <details><summary>What to look for</summary>
#
# Mixtral (2 of 8) reads most of its experts from a batch of four on. DeepSeek-V3 (8 of 256) takes about 36 tokens for
# the same share: many narrow experts stay sparse for longer. At 128 tokens it has only four tokens per expert, and
# products with four rows make poor use of a GPU's arithmetic. That's why such models want very large batches, and many
# GPUs that share them.
#
# </details>

# %% [markdown]
# ## Guided
#
# ### What it does to ITL
#
# Two models of the same size in memory, on two H100s, simulated: every token of the dense one uses all its weights.

# %%
stack(pictures.dense_table(), simulated_70b.error_band(simulated.stack(simulated_70b.TODAY, pictures.PAIR[0], tp=2)))

# %% [markdown]
# The gain is large for a lone request and small in the middle, where the MoE reads nearly as many bytes per step. It
# comes back a little at large batches, where the dense model's arithmetic and KV weigh in. Vary context and card:

# %%
simulated.step_parts("Qwen3 30B-A3B (MoE)")

# %% [markdown]
# **Where it loses**: memory. All experts have to be resident, so an MoE that's as fast as a 3B model needs the GPUs of
# a 30B one, and leaves as little room for KV. At low traffic you pay for weights that few tokens use.
#
# ### Expert parallelism
#
# **Tensor parallelism** (TP) cuts every expert into slices, and narrow experts become very narrow. **Expert
# parallelism** (EP) gives each GPU whole experts. Then a token has to travel to its experts and back: two
# **all-to-alls** (each GPU sends to all others) per layer. And a layer is done when its busiest GPU is.

# %%
pictures.imbalance()

# %% [markdown]
# Find out: when is the imbalance worst? How much does a batch of 512 help? And what if GPU 0's experts are popular?
#
# <details><summary>Answer</summary>
#
# It's worst with few tokens and many GPUs: a few draws are never even. Large batches average out chance but not
# popularity: with 1.5 times the even share, GPU 0 stays the straggler at any batch. The cure is to replicate popular
# experts, or move them.
#
# Flags: in vLLM, `--enable-expert-parallel` (experts are spread over TP × DP GPUs), `--all2all-backend`
# (`allgather_reducescatter` by default; `deepep_low_latency` for decode across nodes, `deepep_high_throughput` for
# prefill), and `--enable-eplb` with `--eplb-config '{"num_redundant_experts": 32}'` for copies of popular experts. In
# SGLang: `--ep-size`, `--moe-a2a-backend deepep`.
#
# </details>
#
# **Where it loses**: an all-to-all has a latency, too, and imbalance is at its worst with few tokens. Published figures
# still don't all point one way (TensorRT-LLM had EP ahead of TP for a single request: [docs](../docs/simulator.md)).
# Measure both.
#
# ### Latent attention: the KV bill
#
# **Multi-head latent attention** (MLA) keeps one compressed vector per token and layer, for all heads, and expands it
# when it's needed. For DeepSeek-V3's layers and heads, in 16 bits:

# %%
pictures.kv_table()

# %% [markdown]
# That's less than a third of GQA with eight heads, at the quality of full attention (its authors report). In decode,
# all 128 heads score the latent vector directly. That's some 240 FLOPs per byte (128 × 2 × (576 + 512) FLOPs for 576 ×
# 2 bytes), close to an H100's bend: MLA trades bytes, which decoding is short of, for arithmetic that it had to spare.
#
# ### Why TP wastes it, and data parallel attention doesn't
#
# TP splits the KV cache by heads. A latent vector has no heads to split, so every GPU of the group keeps **the same
# copy**. With **data parallel attention** (DP attention) each GPU runs attention for its own requests and keeps only
# their KV; experts stay spread over all GPUs. The price: attention weights are copied to every GPU.

# %%
pictures.latent_room()

# %% [markdown]
# <details><summary>Where it loses, and the flags</summary>
#
# - **Latency at low load.** A request's attention runs on one GPU instead of eight, and each GPU reads all attention
#   weights for few requests. TP is the better choice until KV runs short.
# - **Uneven load.** The experts tie all **ranks** (the GPUs of the group) together: every step takes as long as the
#   rank with the most work, and a rank without requests runs dummy passes. Routing has to balance running requests
#   *and* their contexts.
# - **Prefix caches** are one per rank: send a conversation back to its rank.
#
# vLLM: `--data-parallel-size 8 --enable-expert-parallel` (with `--tensor-parallel-size 1`). SGLang: `--tp 8 --dp 8
# --enable-dp-attention`. TensorRT-LLM calls it attention DP.
#
# </details>

# %% [markdown]
# ## Deep dive
#
# With $E$ experts, $k$ per token, and $B$ tokens in a step, each expert is skipped by all of them with probability $(1
# - k/E)^B$. So a step is expected to read
#
# $$E\left(1 - (1 - k/E)^B\right) \text{ experts per layer, with } \frac{B\,k}{E} \text{ tokens for each on average.}$$
#
# A product with that few rows is far below the roofline's bend. An expert is compute-bound only when $B\,k/E$ is near
# FLOP/s over bytes/s, so the knee of an MoE is at a batch $E/k$ times that of a dense model: 16 times for Qwen3
# 30B-A3B, 32 times for DeepSeek-V3.
#
# KV bytes per token and layer, $b$ bytes per number: $2 h\,d\,b$ for MHA ($h$ heads of $d$ numbers), $2 g\,d\,b$ for
# GQA with $g$ groups, $(d_c + d_r)\,b$ for MLA with a latent of $d_c$ and a rotated key of $d_r$ numbers. On $n$ GPUs
# under TP, GQA takes $2 g\,d\,b / n$ on each as long as $n \le g$. MLA takes all of it on each.
#
# This is how the engine computes a layer of experts (`minillm/model/moe.py`):

# %%
import inspect

from minillm.model.moe import ExpertRouter, MoE

print(inspect.getsource(ExpertRouter.forward))
print(inspect.getsource(MoE.forward))

# %% [markdown]
# <details><summary>Appendix: sequence and pipeline parallelism</summary>
#
# **Sequence (context) parallelism** splits a long prompt's tokens over GPUs; keys and values are passed from GPU to GPU
# (ring attention), or heads are exchanged by all-to-all (Ulysses). It shortens the prefill of very long prompts. In
# decode there's one new token, so what can be split is the KV it attends to. It does nothing for short contexts.
#
# **Pipeline parallelism** gives each GPU whole layers. Activations are handed on once per stage, so slow links between
# servers are fine. It buys memory and throughput, not latency: one token still goes through all layers, one stage after
# the other, and reads each stage's weights at the bandwidth of that stage's GPUs only. See it with `minillm simulate
# --model llama-3-70b --hardware h100-sxm --tp 1 --pp 4 --qps 1 --traffic chat`, and again with `--tp 4 --pp 1`.
#
# Rule of thumb: TP inside the NVLink domain, EP with DP attention for large MoEs, PP across servers when the model
# doesn't fit one.
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
# Repeat it with more `--max-concurrency`, and with a dense model as large (`Qwen/Qwen3-32B`). A lone request's ITL
# follows the active parameters, so the MoE is ahead. Then its ITL climbs earlier than the dense model's: each token
# wakes other experts. `GPU KV cache size` at start (SGLang: `max_total_num_tokens`) shows what's left once *all*
# experts are loaded.
#
# Balance is logged as `balancedness` (mean load over the largest; 1 is even) or kept in `sglang:eplb_balancedness`. It
# should rise with the batch, and fall when all traffic is about one subject.
#
# [What each name is, and where it was checked](../docs/same_on_vllm.md)
#
# </details>

# %% [markdown]
# ## Say it in an interview
#
# > "For an MoE, a decode step reads only the experts its tokens activate. Eight of 128 is six percent for one request,
# > but by 64 requests it's most of them, so at small batch it costs what its active parameters cost, and at large batch
# > what all of them do. I'd spread experts over GPUs and watch imbalance, because a layer waits for its busiest rank.
# > With MLA, tensor parallelism copies the latent KV to every GPU, so I'd run attention data parallel: several times
# > the KV room, for a copy of the attention weights. At low load I'd keep TP, since its latency is lower."
#
# ## Check yourself

# %%
check = checks()

# Mixtral, 2 of 8 experts: what share (0 to 1) of a layer's experts do 4 tokens read, all equally likely?
check("q1", ...)

# %%
check("q2", ...)  # DeepSeek-V3, tensor parallel on 8 GPUs: kB of KV per token, in bf16, all GPUs together

# %%
check("q3", ...)  # DeepSeek-V3 on 8 H200: how many times the KV fits with data parallel attention?

# %% [markdown]
# ## What this lab cannot tell you
#
# - **Real routing.** The measured router is random. Trained ones have favourites by topic and language; log them (vLLM:
#   `"log_balancedness": true`).
# - **Slices or whole experts: which is faster?** The simulator doesn't model how much faster whole experts multiply, or
#   the overlap of communication with compute, so we don't ask it. Measure both.
# - **DeepSeek's ITL.** Here only its memory is computed; the simulator's floor for it is too low
#   ([why](../docs/simulator.md)).
#
# ## Sources
#
# - MoE: Shazeer et al., 2017; Jiang et al., *Mixtral of Experts*, 2024; *Qwen3 Technical Report*, 2025. Expected
#   experts: Huang et al., *MoESD*, 2025 (arXiv 2505.19645). Expert parallelism: Lepikhin et al., *GShard*, 2020.
# - MLA: *DeepSeek-V2*, 2024 (arXiv 2405.04434); experts over many GPUs and redundant copies: *DeepSeek-V3 Technical
#   Report*, 2024.
# - DP attention: *SGLang v0.4* (LMSYS blog, December 2024) and SGLang's guide *DP, DPA and SGLang DP Router*. Flags:
#   vLLM's documentation, *Expert Parallel Deployment* and *Data Parallel Deployment*; SGLang's *Expert Parallelism*.
# - Ring attention: Liu et al., 2023. Ulysses: Jacobs et al., 2023. Pipelines: Huang et al., *GPipe*, 2019.
