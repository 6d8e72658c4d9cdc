"""Every claim that the course tests, in our own words; where it is measured; and the phases that it is about."""

from dataclasses import dataclass

from course.lab.claims import ANATOMY, DECOMPOSING, LAYERS, SYSTEMS, TECHNIQUES
from course.lab.style import PHASE_LABELS

SOURCES = {"A": ANATOMY, "B": DECOMPOSING, "D": TECHNIQUES, "E": SYSTEMS, "F": LAYERS}
"""By the first letter of a claim's id."""
SHORT_NAMES = {"A": "anatomy", "B": "decomposing", "D": "techniques", "E": "systems", "F": "layers"}
EVERY = tuple(PHASE_LABELS)
_LETTERS = dict(zip("QPFDS", EVERY))


@dataclass(frozen=True)
class Entry:
    """One claim, before anybody has measured it."""

    id: str
    claim: str
    lessons: tuple[str, ...]
    """The first one measures it; it is a topic of the others."""
    phases: tuple[str, ...]
    """Phases of a request whose time it speaks of."""

    @property
    def source(self) -> str:
        return SOURCES[self.id[0]]

    @property
    def source_name(self) -> str:
        """In one word, for filters."""
        return SHORT_NAMES[self.id[0]]

    @property
    def lesson(self) -> str:
        """The lesson that measures it."""
        return self.lessons[0]


def _entry(row: str) -> Entry:
    """From `id | lessons | phases, a letter each | claim`."""
    name, lessons, phases, claim = (part.strip() for part in row.split("|"))
    return Entry(name, claim, tuple(lessons.split()), tuple(_LETTERS[letter] for letter in phases))


ROWS = """
A1 | 00 01 | QPFDS | A request passes through five phases: TTFT is the sum of the first three, E2E of all five.
A2 | 02 09 | Q | Queue wait grows faster than linearly with load, and quantization cannot help a queue.
A3 | 03 | P | Attention in prefill is O(n²): at long context TTFT grows with the square of the prompt.
A4 | 06 | D | Decode is dominated by reading the KV cache.
A5 | 10 | S | A proxy that buffers, or a busy stream, adds 20 to 100 ms that nobody sees.
A6 | 01 12 | QPFD | TTFT 7 s with ITL 50 ms, and TTFT 200 ms with ITL 250 ms, are two different systems.
A7 | 09 | QPD | Quantization helps decode, prefill little, the queue not; at large batch dequantizing hurts the tail.
A8 | 11 | QPD | A smaller model helps prefill and decode, and not the queue.
A9 | 02 03 | QPD | Static, continuous, continuous with chunks: each is better than the one before, for nearly everybody.
A10 | 11 | QD | Throughput grows with the batch until memory ends; TTFT has a knee, for 70B on 4 H100s at 24 to 48.
A11 | 07 | QD | KV of a request is 2 x layers x hidden x length x bytes, less with GQA: 600 MB for 1500 tokens of 70B.
A12 | 07 | Q | When KV is full nothing is admitted and the queue grows; evicted requests are killed or restarted.
A13 | 02 | Q | Continuous batching has about ten times the throughput of static batching.
A14 | 08 09 | D | For work that is mostly decoding, reach for speculation before quantization.
A15 | 07 | QPD | Sharing KV, multi-query attention and int8 attention together cut cost tenfold.
A16 | 11 | QPD | 70B, 4 H100s, 1500 tokens in, 150 out, 100 requests/s at max-batch 64 is a realistic operating point.
A17 | 13 | QPD | 13B on 2 A100s at 60 requests/s: p99 TTFT 3.2 s, and 80 ms x 180 tokens = 14.4 s is the real story.
A18 | 12 | Q | A max-batch of 96, left over from prompts of 800 tokens, makes 2400-token prompts wait 4.8 s at p99.
A19 | 02 03 | QP | Admission control with chunked prefill cuts TTFT by 50 to 70%.
A20 | 11 | Q | Replicas fix a queue for money; a change of configuration fixes it for free.
A21 | 11 | Q | A steady load and a spike want different fixes.
B1 | 01 | QPD | Before anything else, split server time into queue and compute, model time into prefill and decode.
B2 | 07 | QD | More KV per request means fewer requests at once, so a cache can make a server slower.
B3 | 05 03 | PFD | Mixing prefill and decode in a step moves TTFT and ITL in opposite directions.
B4 | 09 | D | Quantize only after an evaluation of quality, with a floor.
B5 | 09 | PD | Unstructured sparsity does not speed up a GPU that multiplies dense matrices.
D1 | 02 | Q | Dynamic batching gives 40% more throughput.
D2 | 02 | QP | A batch costs as much as its longest member for each: seven short requests pay for one long.
D3 | 02 12 | Q | Sorting by length, a slow lane and a limit on prompts tame stragglers.
D4 | 08 | D | Speculation: 2 to 3 times in theory, 1.5 in practice, a loss below 50% acceptance.
D5 | 08 | D | A rejected draft must be generated again from scratch.
D6 | 08 | D | Speculation costs 15% on short outputs: gate it at 50 tokens.
D7 | 03 | P | Halving a prompt of 4000 tokens saves 800 ms, and keeps quality if that is validated.
D8 | 07 | QD | KV memory grows with the square of the length.
D9 | 04 | P | Keeping a session's KV cuts TTFT by 60%.
D10 | 09 | D | int8 weights: 1.5 times the throughput for 2% of accuracy.
D11 | 03 | P | A prompt of 4000 tokens takes four times as long as one of 1000.
D12 | 07 | Q | Paging cut KV memory by 60%.
D13 | 04 | P | LRU in place of a time limit lifts the hit rate from 20% to 80%; alert below 60%.
D14 | 07 | D | A sliding window of 2048 tokens frees 70% of memory.
D15 | 10 | DS | Cancelling streams that nobody reads any more saves 30% of the compute.
D16 | 10 02 | QDS | Streaming and batching together halve the p99.
D17 | 03 | P | FlashAttention: 2.3 times as fast, a third of the memory, no loss.
D18 | 03 | P | Attention is 60 to 70% of the compute.
D19 | 05 06 | PD | Prefill is several times as fast per token as decode.
D20 | 11 | PD | Below 1000 requests a day, buy hardware; from A100 to H100 gives 1.4 times.
D21 | 05 | QPF | Scheduling that knows of the two phases cuts TTFT by 40 to 60% at equal throughput.
D22 | 14 | QPFDS | Static batching 1.5x, continuous 3x, streaming 2x in TTFT, speculation 2.3x, compression 1.5x.
D23 | 12 02 | QP | One request of 15000 tokens in every batch turns a p99 of 2 s into 12 s.
E1 | 10 | S | Streaming improves what a user feels at equal total time.
E2 | 11 | Q | Growing queue wait comes before time-outs.
E3 | 11 | Q | Cold starts dominate where traffic is rare: keep a warm pool.
E4 | 02 10 | Q | Shed load early and say so, instead of letting clients time out.
E5 | 01 | QPFDS | Report percentiles, by bucket of prompt length: a mean hides the tail.
E6 | 10 11 | QPDS | Disconnects, slow tools and oversized prompts break what passes tests of the happy path.
E7 | 10 | S | Far clients: setting up the connection, and distance, dominate TTFT.
E8 | 11 | PD | Send easy requests to a small model; a wrong route costs more than it saves.
F1 | 04 | P | A timestamp at the start of the system prompt makes every request a miss.
F2 | 08 | D | Speculation speeds up by k x acceptance, and saturates at 3 to 4 times.
F3 | 01 11 | QPFDS | Each use case has limits of its own: chat 500/50 ms, code completion 200/30 ms, a summary 1 to 3 s.
F4 | 03 | P | FlashAttention is modest under 4000 tokens, and 50% or more of TTFT at long context.
F5 | 04 | P | Prefix caching nearly removes TTFT for a shared prefix of 2000 tokens.
F6 | 04 | P | Sending requests with the same prefix together raises the hit rate.
"""
REGISTRY: dict[str, Entry] = {entry.id: entry for entry in map(_entry, ROWS.strip().splitlines())}
