"""What both engines are asked, and Hugging Face's answers, computed once per run."""

import json
import random
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from integrity import check_engine

from minillm import Engine, EngineConfig, RequestOutput, SamplingParams
from minillm.model.loader import LoadedModel, load_model

TIE = 1e-4
"""Logits closer than this are a true tie: the order in which fp32 sums are taken may decide."""
LONG_PROMPTS = {"3000 tokens": 3000, "1500 tokens": 1500}

TEXTS, CHATS = json.loads((Path(__file__).parent / "prompts.json").read_text(encoding="utf-8")).values()
"""By name: what tends to go wrong is in them: code, scripts of every kind, emoji, white space, control characters."""
EXACT_LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65, 200)
"""In tokens: around the borders of 16-token KV blocks, and around a 64-token step budget."""
NOVEL = (
    "In the year of the great frost the river stood still from the mill to the old stone bridge. {} "
    "Children skated where barges used to go, and a market of {} stalls grew on the ice overnight. "
)


def make_prompts(tokenizer: Any) -> dict[str, Any]:
    """Every prompt by name: strings, chats and token ids, as a caller may send them."""
    story = tokenizer("".join(NOVEL.format(f"Winter {i} came.", i * 7) for i in range(80)))["input_ids"]
    exact = {f"{length} tokens": story[length : 2 * length] for length in EXACT_LENGTHS}
    # Sent twice, and a whole number of blocks long: with prefix caching nothing would be left to compute.
    twice = {"48 tokens again": exact["48 tokens"], "64 tokens again": exact["64 tokens"]}
    long = {name: story[-length:] for name, length in LONG_PROMPTS.items()}
    return {**TEXTS, **CHATS, **exact, **twice, **long}


def encode(tokenizer: Any, prompt: Any) -> list[int]:
    """Token ids as a user of transformers gets them."""
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    if isinstance(prompt[0], dict):
        return tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
    return list(prompt)


@dataclass
class Reference:
    """Hugging Face's greedy answers to every prompt, in fp32, each prompt by itself: no padding, no batch."""

    model: Any
    prompts: dict[str, Any]
    prompt_ids: dict[str, list[int]]
    max_tokens: dict[str, int]
    answers: dict[str, list[int]] = field(default_factory=dict)

    @torch.inference_mode()
    def answer(self, name: str) -> list[int]:
        """HF generate's output for the prompt called `name`, computed when first asked for."""
        if name not in self.answers:
            ids = torch.tensor([self.prompt_ids[name]])
            output = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=self.max_tokens[name]
            )
            self.answers[name] = output[0, ids.shape[1] :].tolist()
        return self.answers[name]

    @torch.inference_mode()
    def regret(self, prompt_ids: list[int], output_ids: list[int]) -> float:
        """The most by which any output token's logit lies below the best one, given the tokens before it.

        0 = greedy at every position. The model is run anew on prompt + output.
        """
        ids = torch.tensor([[*prompt_ids, *output_ids]])
        logits = self.model(ids[:, :-1], logits_to_keep=len(output_ids)).logits[0]
        chosen = logits.gather(1, torch.tensor(output_ids)[:, None])[:, 0]
        return (logits.max(dim=1).values - chosen).max().item()


@dataclass
class Parity:
    """One model in both engines, and the verdict on what ours says."""

    loaded: LoadedModel
    folder: Path
    reference: Reference

    @property
    def short_names(self) -> list[str]:
        return [name for name in self.reference.prompts if name not in LONG_PROMPTS]

    def lengths_and_texts(self, first: int, step: int) -> list[str]:
        """The prompts of exact lengths, and every so many of the others."""
        others = [name for name in self.short_names if name in TEXTS or name in CHATS]
        return others[first::step] + self.short_names[len(others) :]

    def engine(self, **fields: Any) -> Engine:
        config = {"model": str(self.folder), "dtype": "float32", "device": "cpu", **fields}
        return Engine(EngineConfig(**config), self.loaded)

    def serve(self, engine: Engine, names: Sequence[str], *, interleaved: bool) -> dict[str, RequestOutput]:
        """Greedy answers of `engine`, whose books are checked after every step.

        Args:
            interleaved: prompts arrive a few at a time between steps (seeded); otherwise all at once.
        """
        rng = random.Random(0)
        pending = list(names)
        outputs: dict[str, RequestOutput] = {}
        while pending or engine.has_unfinished:
            count = rng.choice((0, 1, 2, 5)) if interleaved else len(pending)
            for name in pending[:count]:
                params = SamplingParams(temperature=0.0, max_tokens=self.reference.max_tokens[name])
                engine.add_request(self.reference.prompts[name], params, request_id=name, stream=False)
            del pending[:count]
            for output in engine.step():
                outputs[output.request_id] = output
            check_engine(engine)
        assert engine.scheduler.kv.pool.num_used == 0, "blocks are held though nobody is in flight"
        return outputs

    def assert_identical(self, outputs: dict[str, RequestOutput], names: Iterable[str]) -> int:
        """Every answer is Hugging Face's, but for true ties, whose number is returned."""
        num_ties = 0
        for name in names:
            output, expected = outputs[name], self.reference.answer(name)
            assert output.prompt_token_ids == self.reference.prompt_ids[name], f"{name!r} was encoded differently"
            if output.token_ids == expected:
                continue
            # Not the same. A tie is all that excuses it, and only in an answer that ends where it should.
            eos = self.reference.model.generation_config.eos_token_id
            told = f"{name!r}: minillm wrote {output.token_ids}, Hugging Face {expected}"
            assert len(output.token_ids) == self.reference.max_tokens[name] or output.token_ids[-1:] == [eos], told
            assert eos not in output.token_ids[:-1], told
            regret = self.reference.regret(output.prompt_token_ids, output.token_ids)
            assert regret < TIE, f"{told}; at worst a token is {regret:.2g} below the best logit"
            num_ties += 1
        return num_ties


def make_parity(folder: Path, most_tokens: int) -> Parity:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    prompts = make_prompts(tokenizer)
    rng = random.Random(0)
    reference = Reference(
        model=model,
        prompts=prompts,
        prompt_ids={name: encode(tokenizer, prompt) for name, prompt in prompts.items()},
        # Answers of many lengths, so that requests leave the batch at different moments.
        max_tokens={name: rng.randint(2, most_tokens) for name in prompts} | {"3000 tokens": 12},
    )
    loaded = load_model(EngineConfig(model=str(folder), dtype="float32", device="cpu"))
    return Parity(loaded, folder, reference)


@pytest.fixture(scope="session")
def whole_model(smollm_path: Path) -> Parity:
    """SmolLM2-135M, all of it."""
    return make_parity(smollm_path, most_tokens=8)


@pytest.fixture(scope="session")
def tiny_moe(tiny_moe_path: Path) -> Parity:
    """A mixture of experts; random."""
    return make_parity(tiny_moe_path, most_tokens=6)


@pytest.fixture(scope="session")
def lively(lively_llama_path: Path) -> Parity:
    """Random weights in four layers: a wrong KV entry shows in most of its answers."""
    return make_parity(lively_llama_path, most_tokens=10)


@pytest.fixture(scope="session")
def lively_drafts(lively: Parity, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its first two layers, which foretell half of its tokens."""
    return first_layers(2, lively.folder, tmp_path_factory)


@pytest.fixture(scope="session")
def four_layers(smollm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Parity:
    """The first 4 of SmolLM2's 30 layers: it writes one token all the time, which makes good drafts."""
    return make_parity(first_layers(4, smollm_path, tmp_path_factory), most_tokens=6)


@pytest.fixture(scope="session")
def two_layers(smollm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its first 2 layers, which foretell six in ten tokens of the first 4."""
    return first_layers(2, smollm_path, tmp_path_factory)


def first_layers(num_layers: int, of: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with so many layers of a model."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp(f"first-{num_layers}-layers")
    config = AutoConfig.from_pretrained(of, num_hidden_layers=num_layers)
    AutoModelForCausalLM.from_pretrained(of, config=config, dtype=torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(of / name, folder)
    return folder
