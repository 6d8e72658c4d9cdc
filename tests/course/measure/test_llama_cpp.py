"""llama.cpp as a baseline: on the weights it is given it says what minillm and Hugging Face say."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from course.measure.cli import WorkloadName
from course.measure.peers.gguf_export import write_gguf
from course.measure.peers.llama_cpp_batching import serve
from course.measure.workloads import BenchmarkWorkload, make_workloads
from minillm import LLM, SamplingParams
from minillm.bench.errors import BenchmarkError

pytest.importorskip("llama_cpp", reason="the extra `bench` is not installed: pip install llama-cpp-python")

from course.measure.peers.llama_cpp import LlamaCpp, LlamaCppContext, LlamaCppModel, both_layouts

TIE = 1e-4
"""Logits closer than this may be ordered either way: fp32 sums are taken in another order."""


@pytest.fixture(scope="module")
def gguf(tiny_llama_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(tiny_llama_path, file, "float32")
    return file


@pytest.fixture(scope="module")
def both(gguf: Path) -> list[LlamaCpp]:
    return both_layouts(gguf, "float32", max_sequences=8)


def requests_of(seed: int) -> tuple[list[list[int]], list[int]]:
    """More requests than slots, long and short, some with a common beginning."""
    rng = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(100, 49152) for _ in range(count)]

    shared = tokens(70)
    prompts = [tokens(rng.randint(1, 90)) for _ in range(6)] + [shared + tokens(rng.randint(1, 9)) for _ in range(4)]
    rng.shuffle(prompts)
    return prompts, [rng.randint(1, 12) for _ in prompts]


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "per sequence"])
def test_greedy_tokens_are_those_of_minillm_and_hugging_face(tiny_llama_path: Path, gguf: Path, unified: bool) -> None:
    from transformers import AutoModelForCausalLM

    prompts, lengths = requests_of(seed=1)
    context = LlamaCppContext(LlamaCppModel(gguf), num_sequences=4, num_cells=4 * 256, unified=unified, float32_kv=True)
    theirs = [request.output for request in serve(context, prompts, lengths)]
    assert [len(output) for output in theirs] == lengths
    params = [SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True) for length in lengths]
    llm = LLM(model=str(tiny_llama_path), dtype="float32", num_kv_blocks=64)
    ours = [output.token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
    reference = AutoModelForCausalLM.from_pretrained(tiny_llama_path, dtype=torch.float32)
    for prompt, output, own in zip(prompts, theirs, ours):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        best = logits.max(dim=-1).values
        chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert (best - chosen < TIE).all()
        # Without a tie on the way, all three are the same, token by token.
        runner_up = logits.topk(2).values[:, 1]
        if (best - runner_up >= TIE).all():
            assert output == own == logits.argmax(dim=-1).tolist()


def test_batches_that_do_not_hold_a_prompt_change_nothing(
    gguf: Path, both: list[LlamaCpp], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, lengths = requests_of(seed=2)
    model = LlamaCppModel(gguf)
    outputs = []
    for batch_tokens in (2048, 17):
        for unified in (True, False):
            context = LlamaCppContext(model, num_sequences=5, num_cells=5 * 256, unified=unified, float32_kv=True)
            context.batch_tokens = min(context.batch_tokens, batch_tokens)
            outputs.append([request.output for request in serve(context, prompts, lengths)])
    assert outputs[0] == outputs[1] == outputs[2] == outputs[3]


@pytest.mark.parametrize("index", range(len(WorkloadName)), ids=list(WorkloadName))
def test_it_serves_every_workload_and_stamps_every_token(both: list[LlamaCpp], index: int) -> None:
    workload = make_workloads(vocab_size=49152, quick=True)[index]
    for each in both:
        each.warm_up(workload)
        for _ in range(2):
            measured = each.run(workload)
            assert measured.num_tokens == sum(workload.output_lens)
            assert len(measured.ttft) == len(workload.prompts)
            assert len(measured.itl) == sum(length - 1 for length in workload.output_lens)
            assert 0 < min(measured.ttft) <= max(measured.ttft) <= measured.seconds


def test_more_requests_than_it_takes_at_once(both: list[LlamaCpp]) -> None:
    prompts, lengths = requests_of(seed=3)
    for each in both:
        assert each.max_sequences == 8 < len(prompts)
        measured = each.run(BenchmarkWorkload("many", "10 requests", prompts, lengths))
        assert len(measured.ttft) == len(prompts)


def test_a_broken_file_is_an_error_and_nothing_is_printed(tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(BenchmarkError, match=r"llama.cpp cannot load .*broken.gguf"):
        LlamaCppModel(tmp_path / "broken.gguf")
    assert capfd.readouterr().out == ""


def test_loading_and_running_print_nothing(gguf: Path, capfd: Any) -> None:
    [each, _] = both_layouts(gguf, "bfloat16", max_sequences=2)
    each.run(BenchmarkWorkload("one", "1 request", [[5, 6, 7]], [3]))
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""
