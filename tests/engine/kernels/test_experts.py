"""A mixture of experts in four launches against plain operations: on a GPU if there is one, else interpreted."""

import pytest
import torch
import torch.nn.functional as F

from minillm.kernels.ops import Ops, StackedExperts

pytest.importorskip("triton", reason="triton is for Linux")
from minillm.kernels.triton import experts
from minillm.kernels.triton.counters import make_counters
from minillm.kernels.triton.ops import TritonOps

E, HIDDEN, INNER, K = 8, 512, 128, 2


@pytest.mark.parametrize(
    ("tokens", "normalize"),
    [
        *((1, True), (3, False), (19, True)),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, False), (3, True), (19, False))),
    ],
)
def test_mixture(tokens: int, normalize: bool) -> None:
    """One pair of a token and an expert each, several of one expert, and more rows than a tile has."""
    torch.manual_seed(tokens)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        x, router = torch.randn(tokens, HIDDEN).half(), torch.randn(E, HIDDEN).half() / 8
        router[3] = x.sum(0) / 16  # a favourite
        gate_up, down = torch.randn(E, 2 * INNER, HIDDEN).half() / 23, torch.randn(E, HIDDEN, INNER).half() / 11
        layer = StackedExperts(router, gate_up, down, K, normalize)
    shares, chosen = F.linear(x, router).softmax(-1, dtype=torch.float32).topk(K)
    if normalize:
        shares = shares / shares.sum(-1, keepdim=True)
    exact = torch.zeros(tokens, HIDDEN, dtype=torch.float64, device=x.device)
    for token in range(tokens):
        for share, expert in zip(shares[token].tolist(), chosen[token].tolist()):
            gate, up = (gate_up[expert].double() @ x[token].double()).chunk(2)
            exact[token] += share * (down[expert].double() @ (F.silu(gate) * up))
    assert experts.suits(x, layer)
    for _ in range(2):  # counters are as they were
        found = experts.mixture(x, layer)
        assert found.dtype == x.dtype and (found - exact).abs().max() <= 3e-3 * exact.abs().max()


def test_a_row_of_nan_reads_no_expert_that_isnt_there_and_harms_no_other() -> None:
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        x, router = torch.randn(3, HIDDEN).half(), torch.randn(E, HIDDEN).half() / 8
        gate_up, down = torch.randn(E, 2 * INNER, HIDDEN).half() / 23, torch.randn(E, HIDDEN, INNER).half() / 11
    layer = StackedExperts(router, gate_up, down, K, True)
    clean = experts.mixture(x, layer)
    x[1, 7] = float("nan")
    chosen, shares = experts.choose(x, router, K, True, make_counters(x.device))
    assert chosen.min() >= 0 and chosen.max() < E
    assert shares.isnan().any(1).tolist() == [False, True, False]
    found = experts.mixture(x, layer)
    assert torch.equal(found[[0, 2]], clean[[0, 2]]) and found[1].isnan().all()


@pytest.mark.parametrize(("tokens", "k", "size"), [(1, 2, 32), (7, 3, 700)])
def test_parts_sorted_by_expert_are_added_by_token(tokens: int, k: int, size: int) -> None:
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        order, parts, shares = torch.randperm(tokens * k), torch.randn(tokens * k, size), torch.rand(tokens, k)
    exact = torch.zeros(tokens, size, dtype=torch.float64)
    for row, pair in enumerate(order.tolist()):
        exact[pair // k] += parts[row].cpu().double() * shares.flatten()[pair].item()
    for ops in (Ops(), TritonOps()):
        torch.testing.assert_close(ops.add_shares(parts, order, shares).cpu().double(), exact, rtol=1e-5, atol=1e-5)


def test_what_is_left_to_grouped_products() -> None:
    def layer(hidden: int = HIDDEN, inner: int = INNER, k: int = K) -> StackedExperts:
        weights = (torch.empty(E, hidden), torch.empty(E, 2 * inner, hidden), torch.empty(E, hidden, inner))
        return StackedExperts(*weights, k, True)

    x = torch.empty(4, HIDDEN, dtype=torch.bfloat16)
    assert experts.suits(x, layer())
    assert not experts.suits(torch.empty(65, HIDDEN, dtype=torch.bfloat16), layer())
    assert not experts.suits(x[:0], layer()) and not experts.suits(x.float(), layer())
    assert not experts.suits(x, layer(inner=100)) and not experts.suits(x, layer(k=3))
