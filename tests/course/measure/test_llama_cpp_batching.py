"""The continuous-batching loop around llama.cpp, over a context that checks what it is told."""

from collections.abc import Sequence

import numpy as np
import pytest

from course.measure.peers.llama_cpp_batching import serve


class CheckingContext:
    """Knows each sequence's tokens; refuses a position that does not follow. The next token is the context's sum."""

    def __init__(self, num_sequences: int, batch_tokens: int) -> None:
        self.num_sequences, self.batch_tokens = num_sequences, batch_tokens
        self.cells: dict[int, list[int]] = {}
        self.batches: list[list[tuple[int, int]]] = [[]]
        """(sequence, number of tokens) of each addition, by step."""
        self.shared: list[tuple[int, int, int]] = []
        self._wanted: list[int] = []

    def add(self, tokens: Sequence[int], position: int, sequence: int, wants_logits: bool) -> None:
        assert 0 <= sequence < self.num_sequences
        cells = self.cells.setdefault(sequence, [])
        assert position == len(cells)
        cells.extend(tokens)
        self.batches[-1].append((sequence, len(tokens)))
        if wants_logits:
            self._wanted.append(sequence)

    def decode(self) -> np.ndarray:
        assert 0 < sum(count for _, count in self.batches[-1]) <= self.batch_tokens
        tokens = np.array([sum(self.cells[sequence]) % 1009 for sequence in self._wanted], dtype=np.int64)
        self.batches.append([])
        self._wanted = []
        return tokens

    def share(self, source: int, target: int, length: int) -> None:
        assert target not in self.cells
        assert len(self.cells[source]) >= length
        self.cells[target] = self.cells[source][:length]
        self.shared.append((source, target, length))

    def release(self, sequence: int) -> None:
        del self.cells[sequence]


def expected(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(sum(tokens) % 1009)
    return tokens[len(prompt) :]


def prompts_of(*lengths: int) -> list[list[int]]:
    return [[100 * i + j for j in range(length)] for i, length in enumerate(lengths, start=1)]


@pytest.mark.parametrize("num_sequences", [1, 2, 8])
@pytest.mark.parametrize("batch_tokens", [3, 10, 1000])
def test_every_request_gets_its_own_tokens(num_sequences: int, batch_tokens: int) -> None:
    shared = list(range(500, 550))
    prompts = [*prompts_of(1, 7, 40), *([*shared, i, i] for i in range(5)), [*shared, 3, 3], shared]
    lengths = [5, 1, 3, 9, 2, 1, 4, 6, 2, 3]
    context = CheckingContext(num_sequences, max(batch_tokens, num_sequences))
    requests = serve(context, prompts, lengths)
    assert [request.output for request in requests] == [expected(p, n) for p, n in zip(prompts, lengths)]
    assert [len(request.stamps) for request in requests] == lengths
    assert context.cells == {}


def test_decoding_goes_first_and_prompts_fill_the_rest() -> None:
    context = CheckingContext(2, 6)
    serve(context, prompts_of(4, 9), [3, 1])
    assert context.batches[:-1] == [[(0, 4), (1, 2)], [(0, 1), (1, 5)], [(0, 1), (1, 2)]]


def test_a_shared_prefix_is_computed_once() -> None:
    shared = list(range(500, 600))
    context = CheckingContext(4, 64)
    serve(context, [[*shared, i] for i in range(4)], [1] * 4)
    assert sorted(context.shared) == [(0, 1, 100), (0, 2, 100), (0, 3, 100)]
    assert sum(count for batch in context.batches for _, count in batch) == 100 + 4


def test_a_short_common_beginning_is_not_waited_for() -> None:
    context = CheckingContext(2, 1000)
    serve(context, [[1] * 31 + [2], [1] * 31 + [3]], [1, 1])
    assert context.shared == []
    assert len(context.batches) - 1 == 1
