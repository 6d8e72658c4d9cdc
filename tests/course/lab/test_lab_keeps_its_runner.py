"""A run with other fields costs its own time: weights, KV pool and recorded graphs stay where they suit."""

from functools import partial

import pytest
from fake_graph import FakeGraph, TensorLengthAttention

from course.lab.lab import Lab
from minillm.kernels.attention import select
from minillm.runner import kept_runners
from minillm.runner.torch_runner import TorchRunner


def answers(lab: Lab, **fields: object) -> list[list[int]]:
    return [output.token_ids for output in lab.run("chat", attention_backend="eager", **fields).outputs]


def test_runs_of_a_lab_record_what_they_can_meet_once(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[FakeGraph] = []

    def make_graph() -> FakeGraph:
        graphs.append(FakeGraph())
        return graphs[-1]

    monkeypatch.setitem(select.BACKENDS, "eager", TensorLengthAttention)
    monkeypatch.setattr(kept_runners, "TorchRunner", partial(TorchRunner, make_graph=make_graph))
    changes = [{}, {"max_num_seqs": 1}, {"enable_prefix_caching": False}, {"max_num_seqs": 8}, {"num_kv_blocks": 64}]
    recorded = []
    for fields in changes:
        found = answers(tiny_lab, **fields)
        recorded.append(len(graphs))
        alone = Lab(short=True, **tiny_lab.defaults)
        with monkeypatch.context() as patch:
            patch.setattr(kept_runners, "TorchRunner", TorchRunner)
            assert found == answers(alone, **fields) and all(found)
        alone.close()
    pieces = 7 * 3  # steps of 16 to 256 tokens, each cut at two layers' attention
    assert recorded == [3 + pieces] * 3 + [4 + pieces] * 2, "1, 2, 4 for four slots, 8 for eight; a smaller pool: none"
    assert sum(graph.num_replays for graph in graphs) > 20


def test_engines_in_turn_record_what_the_largest_of_them_can_meet(
    tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: list[FakeGraph] = []

    def make_graph() -> FakeGraph:
        graphs.append(FakeGraph())
        return graphs[-1]

    monkeypatch.setitem(select.BACKENDS, "eager", TensorLengthAttention)
    assert tiny_lab.model is not None, "the lab's own engine is there"
    monkeypatch.setattr(kept_runners, "TorchRunner", partial(TorchRunner, make_graph=make_graph))
    recorded = []
    for slots, blocks in ((32, 96), (8, 24), (1, 96)):
        engine = tiny_lab.next_engine(attention_backend="eager", max_num_seqs=slots, num_kv_blocks=blocks)
        recorded.append(len(graphs))
        assert engine.config.max_num_seqs == slots and engine.torch_runner.num_kv_blocks == blocks
    assert recorded[0] > 0 and recorded[1:] == [recorded[0]] * 2, "the largest first: the others replay its graphs"
