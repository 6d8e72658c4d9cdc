"""The quality gate: its numbers on the real model, and that it cannot be talked out of a broken limit."""

import dataclasses
import gc
import json
import math
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from course.measure import scoring
from course.measure.quality import (
    Cost,
    Quality,
    QualityLimits,
    QualityVerdict,
    engine_config,
    judge,
    notes,
    request_bytes,
    token_seconds,
)
from course.measure.scoring import TextScore, choose, cut, decode_texts, held_text, load_items, score_text
from minillm.bench.cli import bench_app
from minillm.bench.errors import BenchmarkError
from minillm.bench.report import BenchmarkResult
from minillm.bench.target import Target
from minillm.core.errors import ConfigError
from minillm.core.params import SamplingParams
from minillm.frontend.engine import Engine
from minillm.model.loader import load_model
from minillm.policies.config import EngineConfig
from minillm.runner.torch_runner import TorchRunner

GOOD = Quality(10.0, 0.001, 0.99, 20, 12)
BEFORE, CHEAPER = Cost(200, 20, 4000, 50.0), Cost(100, 20, 4000, 80.0)


def changed(**fields: float) -> Quality:
    return dataclasses.replace(GOOD, **fields)


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        (CHEAPER, QualityVerdict(True, gains=["1.60x the decode speed", "50% of the weights"])),
        (BEFORE, QualityVerdict(False)),
        (Cost(200, 20, 4000, 50.5), QualityVerdict(False)),  # one percent is noise
        (Cost(200, 20, 1000, 49.5), QualityVerdict(True, gains=["25% of the KV bytes of a request"])),
        (
            Cost(200, 10, 2000, 40.0),
            QualityVerdict(False, gains=["50% of the KV bytes of a request"], losses=["0.80x the decode speed"]),
        ),
        (
            Cost(300, 20, 4000, 60.0),
            QualityVerdict(False, gains=["1.20x the decode speed"], losses=["150% of the weights"]),
        ),
    ],
)
def test_as_good_and_cheaper_in_speed_or_memory_is_better_and_a_trade_is_none(
    after: Cost, verdict: QualityVerdict
) -> None:
    assert judge([GOOD, changed(perplexity=10.05)], [BEFORE, after], QualityLimits()) == verdict


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"perplexity": 10.2}, "perplexity rises by 2.00%, more than 1.00%"),
        ({"kl": 0.06}, "KL is 0.0600"),
        ({"agreement": 0.85}, "85.0%, less than 90.0%"),
        ({"choices_right": 18}, "2 choices items fewer"),
        ({"reading_right": 10}, "2 reading items fewer"),
        ({"perplexity": math.nan}, "perplexity rises by nan%"),
        ({"kl": math.nan}, "KL is nan"),
        ({"agreement": math.nan}, "nan%, less than 90.0%"),
    ],
)
def test_no_speed_makes_up_for_a_broken_limit(fields: dict, reason: str) -> None:
    verdict = judge([GOOD, changed(**fields)], [BEFORE, Cost(1, 1, 1, 1e6)], QualityLimits())
    assert not verdict.better and verdict.gains
    assert len(verdict.broken) == 1 and reason in verdict.broken[0]


def test_scores_of_logits() -> None:
    reference, candidate = torch.randn(100, 30), torch.randn(100, 30)
    truth, score = torch.randint(0, 30, (100,)), TextScore()
    score.add(reference[:70], candidate[:70], truth[:70])
    score.add(reference[70:], candidate[70:], truth[70:])
    p, q = reference.double().log_softmax(-1), candidate.double().log_softmax(-1)
    assert score.kl == pytest.approx((p.exp() * (p - q)).sum().item(), rel=1e-4)
    loss = torch.nn.functional.cross_entropy(candidate.double(), truth).item()
    assert score.candidate_perplexity == pytest.approx(math.exp(loss), rel=1e-4)
    assert score.agreed == (reference.argmax(-1) == candidate.argmax(-1)).sum()


@pytest.fixture
def tiny_engines(tiny_llama_path: Path) -> list[Engine]:
    config = EngineConfig(model=str(tiny_llama_path), dtype="float32", device="cpu", num_kv_blocks=128)
    model = load_model(config)
    return [Engine(config, model) for _ in range(2)]


@pytest.mark.parametrize("fails", [False, True])
def test_scoring_leaves_no_request_behind(
    tiny_engines: list[Engine], fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[list[str]] = [[], []]
    for engine, ids in zip(tiny_engines, forgotten):
        monkeypatch.setattr(engine.drafts, "forget", lambda request, ids=ids: ids.append(request.request_id))
    if fails:
        monkeypatch.setattr(TextScore, "add", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        score_text(*tiny_engines, "A story of some words. " * 8)
    gc.collect()  # the generators of the failed one
    assert forgotten == [["text-0"], ["text-0"]]


def test_what_is_scored_are_the_logits_of_hugging_face(tiny_llama_path: Path, tiny_engines: list[Engine]) -> None:
    from transformers import AutoModelForCausalLM

    ids = tiny_engines[0].tokenizer.encode(held_text())[:80]
    hf = AutoModelForCausalLM.from_pretrained(tiny_llama_path, dtype=torch.float32)
    with torch.inference_mode():
        expected = hf(torch.tensor([ids])).logits[0, 19:-1]
    steps = list(decode_texts(tiny_engines[0], [ids], [20]))
    assert [step.next_ids.item() for step in steps] == ids[20:]
    torch.testing.assert_close(torch.cat([step.logits for step in steps]), expected, rtol=1e-4, atol=1e-4)


def test_answers_that_failed_are_not_compared(tiny_engines: list[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchRunner, "launch", lambda self, batch: 1 / 0)
    with pytest.raises(BenchmarkError, match="ZeroDivisionError"):
        token_seconds(tiny_engines[0], [5, 6, 7], 4)


def test_the_command(tiny_llama_path: Path, tmp_path: Path) -> None:
    arguments = ["quality", "--model", str(tiny_llama_path), "--dtype", "bfloat16", "--quick"]
    loose = ["--perplexity-rise", "9", "--agreement", "0", "--tasks-lost", "99", "--kl", "0"]
    arguments += ["--set", "quantization=int8", *loose, "--out", str(tmp_path / "report.json")]
    result = CliRunner().invoke(bench_app, arguments)
    assert result.exit_code == 1, result.output
    assert "KL is 0.0" in result.stdout and "not better, whatever it gains" in result.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["settings"]["changed"] == {"quantization": "int8"} and len(report["results"]["broken"]) == 1
    cost = report["cost"]
    assert cost["candidate"]["weight_bytes"] < 0.6 * cost["reference"]["weight_bytes"]


@pytest.mark.parametrize(
    ("verdict", "status"), [(QualityVerdict(True), 0), (QualityVerdict(False), 0), (QualityVerdict(False, ["kl"]), 1)]
)
def test_exit_status(verdict: QualityVerdict, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = BenchmarkResult(verdict, {}, "float32", torch.device("cpu"), "")
    monkeypatch.setattr("course.measure.quality.run", lambda *_: measured)
    assert CliRunner().invoke(bench_app, ["quality"]).exit_code == status


# ---------------------------------------------------------------- the real model

PIECES, PIECE, PROMPT = 6, 64, 32
WINDOW = 16
"""The piece is four times as long, as in the command."""


SETTINGS = {
    "bf16": {},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "kv int8": {"kv_cache_dtype": "int8"},
    "kv fp8": {"kv_cache_dtype": "fp8"},
    "window": {"sliding_window": WINDOW},
    "sinks": {"sliding_window": WINDOW, "attention_sinks": 4},
}
GROUPED = {"quantization": "int4", "int4_group_size": 64}
"""Another layout of the same int4; its weights take seconds to make."""


@pytest.fixture(scope="module")
def engines(smollm_path: Path) -> dict[str, Engine]:
    models, found = {}, {}
    for name, fields in SETTINGS.items():
        config = engine_config(Target(str(smollm_path), fields=fields))
        models[config.quantization] = models.get(config.quantization) or load_model(config)
        found[name] = Engine(config, models[config.quantization])
    return found


@pytest.fixture(scope="module")
def scores(engines: dict[str, Engine]) -> dict[str, TextScore]:
    return scores_of(engines)


def scores_of(engines: dict[str, Engine]) -> dict[str, TextScore]:
    """Scores over some pieces of the text; the reference is computed once for all."""
    ids = engines["bf16"].tokenizer.encode(held_text())
    pieces = [ids[PIECE * i : PIECE * (i + 1)] for i in range(PIECES)]
    found = {name: TextScore() for name in engines}
    steps = {name: decode_texts(engine, pieces, [PROMPT] * PIECES) for name, engine in engines.items()}
    for reference in steps.pop("bf16"):
        found["bf16"].add(reference.logits, reference.logits, reference.next_ids)
        for name, candidate in steps.items():
            found[name].add(reference.logits, next(candidate).logits, reference.next_ids)
    return found


def rise(score: TextScore) -> float:
    return score.candidate_perplexity / score.reference_perplexity - 1


def test_the_reference_against_itself(scores: dict[str, TextScore]) -> None:
    score = scores["bf16"]
    assert score.positions == PIECES * (PIECE - PROMPT) and 8 < score.reference_perplexity < 60
    assert rise(score) == 0 and score.kl == 0 and score.agreed == score.positions


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("int8", 0.01),
        ("int4", 0.02),  # the checkpoint was made of such weights: see notes()
        ("kv int8", 0.005),
        ("kv fp8", 0.01),
    ],
)
def test_what_rounding_costs(scores: dict[str, TextScore], name: str, most: float) -> None:
    check_cost(scores[name], most)


@pytest.mark.slow
def test_what_rounding_costs_in_larger_groups(engines: dict[str, Engine], smollm_path: Path) -> None:
    config = engine_config(Target(str(smollm_path), fields=GROUPED))
    scores = scores_of({"bf16": engines["bf16"], "grouped": Engine(config, load_model(config))})
    check_cost(scores["grouped"], 0.5)


def check_cost(score: TextScore, most: float) -> None:
    """Perplexity may rise by what KL explains, and 4 standard errors of so few positions.

    Which matrix kernel is fastest is tried on each machine, so the reference itself is rounded in one of several
    ways. The log ratio of two near distributions has a mean of KL and a variance of twice that.
    """
    kl, positions = score.kl / score.positions, score.positions
    assert 0 < kl < most
    assert abs(math.log1p(rise(score))) < kl + 4 * math.sqrt(2 * kl / positions)


def test_sinks_save_a_window(scores: dict[str, TextScore]) -> None:
    """16 of up to 64 tokens in sight: without the first four, 704% more perplexity; with them, 5%."""
    assert rise(scores["window"]) > 0.3 and abs(rise(scores["sinks"])) < 0.1
    assert scores["sinks"].kl / scores["sinks"].positions > 0.01, "lossy all the same"


def test_memory_of_each(engines: dict[str, Engine]) -> None:
    sizes = {name: engines[name].runner.num_kv_blocks for name in ("bf16", "kv int8")}
    assert sizes["bf16"] == sizes["kv int8"], "as many tokens were asked for"
    held = {name: request_bytes(engine) for name, engine in engines.items()}
    assert held["kv int8"] / held["bf16"] == 66 / 128
    assert held["sinks"] / held["bf16"] == (1 + WINDOW / 16) / (2048 / 16)


@pytest.mark.slow
def test_tasks_are_neither_trivial_nor_hopeless(engines: dict[str, Engine]) -> None:
    items = load_items("choices")["items"]
    right = sum(choose(engines["bf16"], beginning, endings) == 0 for beginning, endings in items)
    assert 0.7 * len(items) < right <= len(items)


def test_the_model_chooses_among_four_different_endings(engines: dict[str, Engine]) -> None:
    items = load_items("choices")["items"]
    assert all(len(set(endings)) == 4 for _, endings in items)
    assert sum(choose(engines["bf16"], beginning, endings) == 0 for beginning, endings in items[:4]) >= 3


def test_a_beginning_in_common_is_computed_once_and_changes_no_logits(
    tiny_engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, computed = tiny_engines[0], []
    forward = engine.runner.forward
    monkeypatch.setattr(
        engine.runner, "forward", lambda batch: computed.extend(s.num_tokens for s in batch.scheduled) or forward(batch)
    )
    prompt = engine.tokenizer.encode(held_text())[:40]
    texts = [prompt + tail for tail in ([5, 6], [7, 8, 9], [10])]
    alone, together = (list(decode_texts(engine, texts, [40] * 3, num_shared=each)) for each in (0, 39))
    assert computed[:3] == [40, 40, 40] and computed[6:9] == [40, 40 - 32, 40 - 32], "two full blocks of 16"
    for one, other in zip(alone, together, strict=True):
        assert one.texts == other.texts
        torch.testing.assert_close(one.logits, other.logits, rtol=1e-4, atol=1e-4)


def test_every_scored_token_is_decoded_by_itself(engines: dict[str, Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a prefill makes of it is not judged: its kernels, and what it keeps unrounded, are not those of decode."""
    engine, batches = engines["kv int8"], []
    forward = engine.runner.forward
    monkeypatch.setattr(engine.runner, "forward", lambda batch: batches.append(batch) or forward(batch))
    texts = [[5, 6, 7, 8, 9, 10], [11, 12, 13], [14, 15]]
    steps = list(decode_texts(engine, texts, [2, 1, 1]))
    assert [step.texts for step in steps] == [[0, 1, 2], [0, 1], [0], [0]]
    assert [step.next_ids.tolist() for step in steps] == [[7, 12, 15], [8, 13], [9], [10]]
    assert [[s.num_tokens for s in batch.scheduled] for batch in batches] == [[2], [1], [1], [1, 1], [1], [1]]
    assert all(batch.num_decodes == len(batch.scheduled) for batch in batches[1:])


def test_the_engine_decodes_what_was_scored(engines: dict[str, Engine]) -> None:
    """Told its own greedy answer, it finds each token of it the likeliest."""
    prompt = engines["sinks"].tokenizer.encode(held_text())[:60]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    engines["sinks"].add_request(prompt, params, stream=False)
    while engines["sinks"].has_unfinished:
        outputs = engines["sinks"].step()
    answer = outputs[0].token_ids
    for step in decode_texts(engines["sinks"], [prompt + answer], [len(prompt)]):
        assert step.logits.argmax(-1).tolist() == step.next_ids.tolist()


def test_a_step_of_several_tokens_counts_them_all(engines: dict[str, Engine]) -> None:
    """Drafts that all pass: two thirds of the passes are saved, and the speed says so."""
    model = engines["bf16"].model
    speculative = {"method": "draft_model", "model": model.name, "k": 3, "acceptance_floor": 0, "adaptive_k": False}
    config = engine_config(Target(model.name, fields={"speculative": speculative}))
    engine, clock = Engine(config, model), engines["bf16"].clock
    prompt = engine.tokenizer.encode(held_text())[:8]
    before, start = engine.scheduler.num_steps, clock.now()
    seconds = token_seconds(engine, prompt, 9)
    assert engine.scheduler.num_steps - before == 3, "the prompt, and twice three drafts and one more"
    assert 0 < 8 * seconds <= clock.now() - start


def test_a_checkpoint_that_was_of_four_bits_is_named(smollm_path: Path, engines: dict[str, Engine]) -> None:
    assert "made of 4-bit weights" in notes(engines["int4"], str(smollm_path))[0]
    assert notes(engines["int8"], str(smollm_path)) == []


@pytest.mark.parametrize("seen", [0, 20, 50])
def test_pieces_are_long_against_the_window(seen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "CHUNK", 32)
    pieces = cut(list(range(101)), seen)
    assert [token for piece in pieces for token in piece] == list(range(101))
    assert [len(piece) for piece in pieces] == {0: [33, 34, 34], 20: [101], 50: [101]}[seen]


def test_a_window_that_the_texts_hardly_outgrow_is_refused(engines: dict[str, Engine]) -> None:
    with pytest.raises(ConfigError, match="what the window loses would not be seen"):
        cut(list(range(101)), 51)
    with pytest.raises(ConfigError, match=r"a token sees 20 tokens .* the text has 39"):
        score_text(engines["bf16"], engines["sinks"], held_text(), most_tokens=39)
