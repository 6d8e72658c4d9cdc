"""Training a draft head, on a tiny model of random weights: its conversations, its loss, and resuming it."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from minillm import Engine, EngineConfig, SamplingParams
from minillm.__main__ import app
from minillm.core.batch import ScheduledRequest
from minillm.core.errors import ConfigError, TrainingError
from minillm.model.loader import LoadedModel
from minillm.speculation.head_file import load_head, new_head
from minillm.training import conversations as making
from minillm.training import make
from minillm.training.conversations import ChatFrame, Conversation, load_conversations, sample_conversations
from minillm.training.linear_start import start_linear
from minillm.training.loss import Agreement, count_agreement, training_loss
from minillm.training.train import Training, TrainingSettings
from minillm.training.unrolled import ConversationBatch, unroll

SHARD = 8
SETTINGS = TrainingSettings(vocabulary=50, passes=8, draft_len=2, conversations_per_step=3, learning_rate=5e-3)


@pytest.fixture(autouse=True)
def small_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "SHARD_SIZE", SHARD)
    monkeypatch.setattr(making, "MAX_USER_TOKENS", 10)
    monkeypatch.setattr(making, "MAX_ANSWER_TOKENS", 12)
    # A nucleus of a model that finds all tokens about equally likely is a matter of rounding.
    monkeypatch.setattr(making, "TOP_P", 1.0)
    monkeypatch.setattr(make, "SHARD_SIZE", SHARD)
    monkeypatch.setattr(make, "SAMPLED_AT_ONCE", 5)
    monkeypatch.setattr(make, "GREEDY", 0.0)


def make_engine(model: LoadedModel, **fields: object) -> Engine:
    return Engine(EngineConfig(model=model.name, dtype="float32", device="cpu", num_kv_blocks=256, **fields), model)


@pytest.fixture(scope="module")
def conversations(tiny: LoadedModel) -> list[Conversation]:
    """Of random tokens, among 50 of them."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for length in (20, 31, 9, 24, 17, 12, 28, 15, 22, 30, 11, 26):
        token_ids = torch.randint(100, 150, (length,), generator=generator, dtype=torch.int32)
        [hidden] = hidden_states(tiny, [token_ids.tolist()])
        made.append(Conversation(token_ids, length // 2, hidden[:-1].bfloat16()))
    return made


def hidden_states(model: LoadedModel, prompts: Sequence[list[int]]) -> list[Tensor]:
    """[n, h] of each prompt."""
    engine, shown = make_engine(model, enable_prefix_caching=False), []

    class Reader:
        def read_hidden_states(self, scheduled: Sequence[ScheduledRequest], hidden: Tensor) -> None:
            shown.append(hidden)

    engine.runner.hidden_state_reader = Reader()
    for prompt in prompts:
        engine.add_request(prompt, SamplingParams(max_tokens=1))
        engine.step()
    return shown


# -------------------------------------------------------------------- conversations


def test_talks_have_the_frame_of_a_chat_and_the_states_of_the_model(tiny: LoadedModel, tmp_path: Path) -> None:
    files = sample_conversations(make_engine(tiny, max_num_seqs=5), tmp_path, range(2), progress=False)
    found = [conversation for file in files for conversation in load_conversations(file)]
    frame = ChatFrame.of(tiny.tokenizer)
    assert len(found) == 2 * SHARD
    for conversation, states in zip(
        found, hidden_states(tiny, [conversation.token_ids.tolist() for conversation in found])
    ):
        prompt = conversation.token_ids[: conversation.answer_start].tolist()
        assert prompt[: len(frame.before)] == frame.before and prompt[-len(frame.between) :] == frame.between
        assert (
            0 < len(conversation.token_ids) - conversation.answer_start <= 12
            and len(conversation.hidden) == len(conversation.token_ids) - 1
        )
        torch.testing.assert_close(conversation.hidden, states[:-1].bfloat16(), atol=2e-2, rtol=2e-2)
    words = tiny.tokenizer.decode(found[0].token_ids)
    assert words.startswith("<|im_start|>system\nYou are") and "<|im_start|>assistant\n" in words


def test_sampling_goes_on_with_the_missing_file_and_makes_the_same(tiny: LoadedModel, tmp_path: Path) -> None:
    files = sample_conversations(make_engine(tiny, max_num_seqs=5), tmp_path, range(3), progress=False)
    before = [[conversation.token_ids.tolist() for conversation in load_conversations(file)] for file in files]
    times = [file.stat().st_mtime_ns for file in files]
    files[1].unlink()
    sample_conversations(make_engine(tiny, max_num_seqs=2), tmp_path, range(3), progress=False)
    assert [[conversation.token_ids.tolist() for conversation in load_conversations(file)] for file in files] == before
    assert [file.stat().st_mtime_ns for file in (files[0], files[2])] == [times[0], times[2]]


def test_everyday_questions_are_asked_as_written_and_drawn_answers_follow_when_they_come_around(
    tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "EVERYDAY_SHARE", 1.0)
    monkeypatch.setattr(making, "GREEDY_SHARE", 1.0)
    monkeypatch.setattr(making, "everyday_questions", lambda: ("Why?", "What is {}?", "how so"))
    [file] = sample_conversations(make_engine(tiny, max_num_seqs=5), tmp_path, range(1), progress=False)
    said = [conversation.token_ids.tolist() for conversation in load_conversations(file)]
    asked = [tiny.tokenizer.decode(ids).split("<|im_start|>user\n")[1].split("<|im_end|>")[0] for ids in said]
    assert asked == ["Why?", "What is {}?", "how so"] * 2 + ["Why?", "What is {}?"]
    greedy = making.answer_params(random.Random(0), may_be_greedy=True)
    assert greedy.temperature == 0 < making.answer_params(random.Random(0), may_be_greedy=False).temperature
    engine, prompt = make_engine(tiny), said[0][: load_conversations(file)[0].answer_start]
    engine.add_request(prompt, greedy)
    while engine.has_unfinished:
        [*_, answer] = engine.step()
    assert said[0] == prompt + answer.token_ids
    assert len({tuple(each) for each in said}) > 3  # the same questions, drawn answers


def test_sampling_lets_go_of_the_engine(tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(tiny, max_num_seqs=5)
    sample_conversations(engine, tmp_path / "whole", range(1), progress=False)
    assert engine.torch_runner.hidden_state_reader is None
    monkeypatch.setattr(making, "save_conversations", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sample_conversations(engine, tmp_path / "broken", range(1), progress=False)
    assert engine.torch_runner.hidden_state_reader is None


def test_equal_questions_do_not_hide_their_states_from_each_other(
    tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one would find the whole prompt in the prefix cache."""
    monkeypatch.setattr(making, "EVERYDAY_SHARE", 0.0)
    monkeypatch.setattr(making, "MAX_USER_TOKENS", 1)
    monkeypatch.setattr(making, "without_end", lambda *_: [])
    monkeypatch.setattr(making, "OPENERS", ["What is"])
    monkeypatch.setattr(making, "OPENED_SHARE", 1.0)
    engine = make_engine(tiny, max_num_seqs=2, block_size=1)
    [file] = sample_conversations(engine, tmp_path, range(1), progress=False)
    assert (
        len(
            {
                tuple(conversation.token_ids[: conversation.answer_start].tolist())
                for conversation in load_conversations(file)
            }
        )
        == 1
    )


def test_conversations_about_something_else_are_not_learned_from(
    tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        making.claim_folder(tmp_path, tiny)
    with pytest.raises(TrainingError, match=r"'a-fine-tune'.* choose with --out"):
        sample_conversations(make_engine(replace(tiny, name="a-fine-tune")), tmp_path, range(1), progress=False)
    with monkeypatch.context() as patch, pytest.raises(TrainingError, match="delete them, or choose with --out"):
        patch.setattr(making, "everyday_questions", lambda: ("Why?",))
        making.claim_folder(tmp_path, tiny)
    (tmp_path / "model.json").write_text("{")
    with pytest.raises(TrainingError, match="cannot be read"):
        making.claim_folder(tmp_path, tiny)


def test_a_model_without_a_chat_template(tiny: LoadedModel) -> None:
    with pytest.raises(TrainingError, match="no chat template"):
        ChatFrame.of(None)


# -------------------------------------------------------------------- training


def test_training_lowers_the_loss_and_resumes_to_the_same_weights(
    tiny: LoadedModel, conversations: list[Conversation], tmp_path: Path
) -> None:
    def start(checkpoint: Path | None) -> Training:
        head = new_head(tiny, torch.arange(100, 150), 0, torch.device("cpu"))
        return Training(head, conversations[2:], conversations[:2], SETTINGS, checkpoint)

    whole = start(None)
    batch = ConversationBatch.of(
        [t.token_ids for t in conversations[2:]], [t.hidden for t in conversations[2:]], [0] * 10
    )
    with torch.no_grad():
        before = training_loss(whole.head, batch, 2).item()
    whole.run(progress=False)
    with torch.no_grad():
        # It cannot fall below 7.0: the model's tokens are not certain themselves.
        assert training_loss(whole.head, batch, 2).item() < before - 0.3
    assert whole.step == whole.num_steps == 32

    interrupted = start(tmp_path / "state.pt")
    interrupted.run(until=7, progress=False)
    resumed = start(tmp_path / "state.pt")
    assert resumed.step == 7
    resumed.run(progress=False)
    for one, other in zip(whole.parameters, resumed.parameters, strict=True):
        torch.testing.assert_close(one, other, atol=0, rtol=0)
    with pytest.raises(TrainingError, match="of another run"):
        Training(resumed.head, conversations[3:], conversations[:2], SETTINGS, tmp_path / "state.pt")


def test_embedding_and_output_head_stay_the_models(tiny: LoadedModel, conversations: list[Conversation]) -> None:
    head = new_head(tiny, torch.arange(100, 150), 0, torch.device("cpu"))
    Training(head, conversations[2:], conversations[:2], SETTINGS).run(until=2, progress=False)
    torch.testing.assert_close(head.output.weight, tiny.decoder.lm_head.weight[100:150], atol=0, rtol=0)
    assert head.embed_tokens.data_ptr() == tiny.decoder.embed_tokens.data_ptr()


def test_agreement_counts_what_a_draft_would_pass(tiny: LoadedModel, conversations: list[Conversation]) -> None:
    """By hand: for each place of an answer, a draft is made token by token from the states before it alone."""
    # A head that can name three tokens is right now and then.
    conversation = Conversation(
        torch.randint(100, 103, (200,), generator=torch.Generator().manual_seed(1)), 5, conversations[0].hidden
    )
    [hidden] = hidden_states(tiny, [conversation.token_ids.tolist()])
    head = new_head(tiny, torch.arange(100, 103), 0, torch.device("cpu"))
    agreement = Agreement([0, 0, 0])
    count_agreement(
        head, ConversationBatch.of([conversation.token_ids], [hidden[:-1]], [0]), torch.tensor([5]), agreement
    )
    passed = [0, 0, 0]
    for t in range(4, 196):
        # The tokens after t + 1 are the draft's own; those of the conversation show if they pass.
        for j in range(1, 4):
            tokens = torch.cat((conversation.token_ids[: t + j + 1], torch.zeros(1, dtype=torch.int64)))
            states = torch.cat((hidden[: t + 1], hidden.new_zeros(j, hidden.shape[1])))
            guess = last_guess(head, ConversationBatch.of([tokens], [states], [0]), t, j)
            if guess != conversation.token_ids[t + j + 1]:
                break
            passed[j - 1] += 1
    assert agreement.rows == 192 and agreement.passed == passed and passed[1] > 5
    assert agreement.emitted_per_verify[1] == pytest.approx(1 + (passed[0] + passed[1]) / 192)
    assert agreement.by_position[1] == pytest.approx(passed[1] / passed[0])


@torch.no_grad()
def last_guess(head: torch.nn.Module, batch: ConversationBatch, row: int, num_passes: int) -> int:
    *_, (hidden, _) = unroll(head, batch, num_passes)
    return int(head.token_ids[head.output(hidden[0, row]).argmax()])


def test_from_the_command_line_to_a_head_that_drafts(tiny: LoadedModel, tmp_path: Path) -> None:
    arguments = f"train-draft --model {tiny.name} --out {tmp_path} --conversations 20 --passes 1 --device cpu --json"
    result = CliRunner().invoke(app, arguments.split())
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["conversations"] == 18 and facts["held_out"]["rows"] > 0 and facts["shape"]["hidden_size"] == 64
    assert json.loads((tmp_path / "head.json").read_text()) == facts
    assert load_head(str(tmp_path), tiny).output.weight.shape[0] == facts["vocabulary"]["tokens"]
    again = CliRunner().invoke(app, arguments.split())
    assert json.loads(again.stdout)["held_out"] == facts["held_out"], "there was nothing left to do"


def test_talks_that_judge_stay_the_same_when_more_are_sampled(conversations: list[Conversation]) -> None:
    def judges(number: int) -> set[int]:
        held_out, seen = make.split(many[:number])
        assert [*held_out, *seen] != [] and {id(t) for t in held_out} | {id(t) for t in seen} == {
            *map(id, many[:number])
        }
        return {id(conversation) for conversation in held_out}

    many = [Conversation(conversations[0].token_ids, 1, conversations[0].hidden) for _ in range(2000)]
    assert len(judges(20)) == 2 and len(judges(512)) == 52 and len(judges(2000)) == 128
    for few, more in ((20, 512), (512, 1000), (1000, 2000)):
        learned = {id(conversation) for conversation in many[:few]} - judges(few)
        assert not learned & judges(more)


def test_too_few_talks(tiny: LoadedModel, conversations: list[Conversation], tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="too few"):
        make.train_head(tiny, conversations[:9], SETTINGS, tmp_path)


def test_it_begins_at_the_best_linear_guess(tiny: LoadedModel) -> None:
    """Against numpy's least squares, where the next state is a linear function of what is known, and some noise."""
    head = new_head(tiny, torch.arange(100, 150), 0, torch.device("cpu"))
    size, draws = head.config.hidden_size, torch.Generator().manual_seed(3)
    token_ids = torch.randint(100, 150, (4000,), generator=draws, dtype=torch.int32)
    embedded = torch.nn.functional.rms_norm(head.embed_tokens[token_ids.long()].float(), (size,))
    turn = torch.randn(size, size, generator=draws) / size**0.5
    hidden = torch.cat([torch.randn(1, size, generator=draws), embedded[1:-1] @ turn])
    hidden = hidden + 0.1 * torch.randn(hidden.shape, generator=draws)
    conversation = Conversation(token_ids, 5, hidden.bfloat16())
    start_linear(head, [conversation])
    inputs = torch.cat(
        [torch.nn.functional.rms_norm(conversation.hidden[:-1].float(), (size,)), embedded[1:-1]], dim=-1
    )
    wanted = (conversation.hidden[1:].float() / head.norm.weight).numpy()
    expected = inputs.numpy() @ np.linalg.lstsq(inputs.numpy(), wanted, rcond=None)[0]
    foretold = (inputs @ head.fuse.weight.T).detach().numpy()
    left = ((foretold - wanted) ** 2).mean()
    assert left == pytest.approx(((expected - wanted) ** 2).mean(), rel=0.05) and left < 0.1 * (wanted**2).mean()
    # The layer behind it adds nothing yet: the head's output is the fit's, normed.
    [(states, _)] = unroll(head, ConversationBatch.of([token_ids[:40]], [conversation.hidden[:39]], [0]), 1)
    fit = inputs[:39] @ head.fuse.weight.T
    normed = torch.nn.functional.rms_norm(fit[:38], (size,), head.norm.weight, head.norm.eps)
    torch.testing.assert_close(states[0, :38], normed, atol=1e-4, rtol=1e-3)


def test_going_on_from_another_head(tiny: LoadedModel, conversations: list[Conversation], tmp_path: Path) -> None:
    make.train_head(tiny, conversations, SETTINGS, tmp_path / "one", progress=False)
    still = replace(SETTINGS, learning_rate=0.0, passes=1, start_from=str(tmp_path / "one"))
    with pytest.raises(TrainingError, match=r"is of another run.*start_from.*delete it"):
        make.train_head(tiny, conversations, still, tmp_path / "one", progress=False)
    facts = make.train_head(tiny, conversations, still, tmp_path / "two", progress=False)
    assert facts["went_on_from"] == json.loads((tmp_path / "one" / "head.json").read_text())
    one, two = (load_file(tmp_path / name / "head.safetensors") for name in ("one", "two"))
    for name, weights in one.items():
        torch.testing.assert_close(two[name], weights, atol=0, rtol=0)
    with pytest.raises(ConfigError, match="no draft head for 'nowhere'"):
        make.train_head(tiny, conversations, replace(still, start_from="nowhere"), tmp_path / "three", progress=False)


def test_another_head_has_another_fingerprint() -> None:
    weights = {"fuse": torch.zeros(3, 4, dtype=torch.float16), "norm": torch.ones(4)}
    changed = {**weights, "fuse": weights["fuse"].clone()}
    assert make.fingerprint(changed) == make.fingerprint(weights)
    changed["fuse"][2, 3] = 1
    assert make.fingerprint(changed) != make.fingerprint(weights)
