"""The workloads every engine gets: the same token ids, the same lengths, all arriving together."""

import random
from dataclasses import dataclass

from minillm.bench.target import random_prompts
from minillm.core.brief import brief


@dataclass(frozen=True, slots=True)
class BenchmarkWorkload:
    """Requests that arrive together. Request i must emit exactly output_lens[i] tokens (greedy, no early end)."""

    name: str
    title: str
    prompts: list[list[int]]
    output_lens: list[int]
    constant_batch: bool = False
    """All requests have one shape, so that one decode step is like another and has one floor."""

    __repr__ = brief

    @property
    def num_output_tokens(self) -> int:
        return sum(self.output_lens)

    def truncated(self, max_output: int) -> "BenchmarkWorkload":
        """The same prompts with at most `max_output` tokens each: enough to warm up on."""
        outputs = [min(length, max_output) for length in self.output_lens]
        return BenchmarkWorkload(self.name, self.title, self.prompts, outputs, self.constant_batch)

    @property
    def mean_decode_contexts(self) -> list[float]:
        """Each request's context length, averaged over its decode steps, in tokens."""
        return [len(prompt) + length / 2 for prompt, length in zip(self.prompts, self.output_lens)]


PROMPT_LENGTHS = (128, 512, 1024, 2048)
"""Tokens of the prompts that are measured alone, for one token of output."""
BY_NAME = ("batch_32", "batch_128", "prefill_4096", "prefill_8192", "prefill_16384")
"""Workloads that are measured only where they are named: for GPUs."""
SHORTEST, LONGEST = 100, 1024
"""Tokens of an input, and of an output, of the ragged workload."""


def make_workloads(vocab_size: int, seed: int = 0, quick: bool = False) -> list[BenchmarkWorkload]:
    """Seeded random tokens: no two prompts share a prefix but where the workload says so.

    Args:
        quick: a few tokens of each, to try the machinery and measure nothing.
    """
    rng = random.Random(seed)
    scale = 8 if quick else 1
    note = f" (quick: 1/{scale} of it)" if quick else ""

    def tokens(count: int) -> list[int]:
        # Low ids are control tokens in most vocabularies.
        return [rng.randrange(100, vocab_size) for _ in range(max(count // scale, 1))]

    def length(count: int) -> int:
        return max(count // scale, 2)

    def batch(size: int) -> BenchmarkWorkload:
        prompts = [tokens(128) for _ in range(size)]
        title = f"{size} requests, 128 in, 64 out{note}"
        return BenchmarkWorkload(f"batch_{size}", title, prompts, [length(64)] * size, constant_batch=True)

    def prompt(count: int) -> BenchmarkWorkload:
        return BenchmarkWorkload(f"prefill_{count}", f"1 prompt of {count}, 1 out{note}", [tokens(count)], [1])

    shared = tokens(512)
    many = 32 // scale
    return [
        BenchmarkWorkload("one", f"1 request, 128 in, 64 out{note}", [tokens(128)], [length(64)], constant_batch=True),
        BenchmarkWorkload(
            "eight",
            f"8 requests, 128 in, 64 out{note}",
            [tokens(128) for _ in range(8)],
            [length(64)] * 8,
            constant_batch=True,
        ),
        BenchmarkWorkload(
            "mixed",
            f"32 requests, 20-300 in, 8-96 out{note}",
            [tokens(rng.randint(20, 300)) for _ in range(many)],
            [length(rng.randint(8, 96)) for _ in range(many)],
        ),
        BenchmarkWorkload(
            "shared_prefix",
            f"32 requests, 512 shared + 32 own in, 32 out{note}",
            [shared + tokens(32) for _ in range(many)],
            [length(32)] * many,
        ),
        *map(prompt, PROMPT_LENGTHS),
        *map(batch, (32, 128)),
        *map(prompt, (4096, 8192, 16_384)),
    ]


def ragged_workload(vocab_size: int, requests: int, seed: int, scale: float) -> BenchmarkWorkload:
    """The compact engines' workload: nano-vllm's benchmark is 256 such requests at scale 1. No two share a prefix."""
    rng = random.Random(seed)

    def lengths() -> list[int]:
        return [max(round(scale * rng.randint(SHORTEST, LONGEST)), 1) for _ in range(requests)]

    inputs, outputs = lengths(), [max(length, 2) for length in lengths()]
    low, high = (max(round(scale * length), 1) for length in (SHORTEST, LONGEST))
    title = f"{requests} requests, {low}-{high} in, {low}-{high} out, all at once (scale {scale:g})"
    return BenchmarkWorkload("throughput", title, random_prompts(vocab_size, inputs, seed), outputs)
