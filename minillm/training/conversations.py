"""What a draft head learns from: the model's own answers. No data set is needed.

Most questions are plain ones, put together from templates (everyday.py). The others the model thinks up: a chat model
that is given its template up to where the user's turn begins writes what a user might say (Xu et al. 2024, "Magpie").
A small model rambles if it is left alone with an empty turn, so most of those turns are begun for it, with words that
questions often begin with. The answers are what a head has to guess, so most are greedy, as they will be when it is
used, and some are drawn, so that it has seen more than the beaten track.

The hidden states, which the head builds on, are recorded while the model answers: computing them again would take a
third of the time once more.
"""

import json
import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from tqdm.auto import tqdm

from minillm.core.batch import ScheduledRequest
from minillm.core.errors import TrainingError
from minillm.core.params import SamplingParams
from minillm.frontend.engine import Engine
from minillm.kernels.storage import storage_errors, write_whole
from minillm.model.loader import LoadedModel
from minillm.speculation.head_file import ANOTHER_OUT
from minillm.training.everyday import everyday_questions

SOURCE = "model.json"
"""Beside the conversations: which model they were sampled from, and how."""
SHARD_SIZE = 128
"""Conversations in a file. Small, so that training may begin while more are sampled."""
MAX_USER_TOKENS, MAX_ANSWER_TOKENS = 160, 256
EVERYDAY_SHARE = 0.75
"""Of the conversations: how many begin with an everyday question."""
OPENED_SHARE = 0.8
"""Of the user's turns that the model thinks up: how many begin with one of the openers."""
OPENERS = """\
What is|What are|What does|What should I|What was|How do I|How do|How does|How can I|How many|Why is|Why do
Who is|Who was|When did|Where is|Which|Is it|Are there|Can I|Can you|Could you|Should I|Do you|Explain
Describe|Define|Compare|Write a|Write an|Write a short|Write me|Give me|Tell me|Tell me about|List|Name three
Suggest|Recommend|Summarize|Translate|Rewrite|Create a|Make a|Plan a|Help me|Show me|Teach me|I want to|I need
I have|I am|My|In simple terms,|Please""".replace("\n", "|").split("|")
TOP_P = 0.9
"""Of the user's turns, which are drawn at temperature 1: without it, one in three is gibberish."""
GREEDY_SHARE = 0.7
"""Of the answers; the others, and those to questions that come around again, are drawn at temperatures between 0.7
and 1."""


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """What the chat template puts around the user's words, as token ids."""

    before: list[int]
    between: list[int]
    """From the end of the user's turn to the beginning of the answer."""

    def around(self, words: list[int]) -> list[int]:
        """The prompt of a user's words."""
        return self.before + words + self.between

    @classmethod
    def of(cls, tokenizer: Any) -> "ChatFrame":
        """Read it off the tokenizer's template.

        Raises:
            TrainingError: there is no tokenizer, no template, or the template does not show the user's words.
        """
        marker = "\x01the user's words\x01"
        if tokenizer is None or not tokenizer.chat_template:
            raise TrainingError("the model has no chat template, so it cannot make its own training conversations")
        messages = [{"role": "user", "content": marker}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        before, found, between = text.partition(marker)
        if not found:
            raise TrainingError("the model's chat template changes what the user says: give conversations of your own")
        return cls(*(tokenizer(part, add_special_tokens=False)["input_ids"] for part in (before, between)))


@dataclass(frozen=True, slots=True)
class Conversation:
    """One prompt of n - m tokens and its answer of m."""

    token_ids: Tensor
    """[n] int32"""
    answer_start: int
    hidden: Tensor
    """[n - 1, h] bfloat16: what went into the output head after each token but the last"""


class Recorder:
    """Keeps every request's hidden states; a :class:`minillm.runner.hidden_states.HiddenStateReader`.

    Args:
        num_shared: how many tokens all conversations have in common at their beginning.
    """

    def __init__(self, num_shared: int) -> None:
        self.num_shared = num_shared
        self._pieces: dict[str, list[tuple[int, Tensor]]] = {}
        self._opening: Tensor | None = None
        """Of the shared tokens: only the first conversation computes them, the others find them cached."""

    def read_hidden_states(self, scheduled: Sequence[ScheduledRequest], hidden: Tensor) -> None:
        for each, rows in zip(scheduled, hidden.bfloat16().cpu().split([s.num_tokens for s in scheduled])):
            self._pieces.setdefault(each.request.request_id, []).append((each.start, rows))
            if each.start == 0 and self._opening is None:
                self._opening = rows[: self.num_shared].clone()

    def take(self, request_ids: Sequence[str], num_tokens: int) -> Tensor | None:
        """[num_tokens, h] the states of the first tokens, by requests that each continue the one before; None if
        some were found in the prefix cache, because another conversation began with the same question."""
        opening = self._opening
        assert opening is not None, "the first request of all computes every token"
        pieces = [(0, opening)] + [piece for each in request_ids for piece in self._pieces.pop(each, [])]
        states = opening.new_full((num_tokens, opening.shape[1]), torch.nan)
        for start, rows in pieces:
            states[start : start + len(rows)] = rows[: max(num_tokens - start, 0)]
        return None if states.isnan().any() else states


def sample_conversations(engine: Engine, folder: Path, shards: Iterable[int], *, progress: bool = True) -> list[Path]:
    """Sample until the folder holds the files with these numbers, SHARD_SIZE conversations each. Returns them.

    But for rounding, a file's conversations depend on its number alone, so it does not matter how often this was
    interrupted: finished files are kept, and missing ones are made.

    Raises:
        TrainingError: the model has no chat template, or the folder's conversations are another model's.
        StorageError: the disk is full, or the folder cannot be written.
    """
    with storage_errors(folder, 0, ANOTHER_OUT):
        folder.mkdir(parents=True, exist_ok=True)
    claim_folder(folder, engine.loaded_model)
    files = {i: folder / f"conversations-{i:05d}.safetensors" for i in shards}
    missing = [i for i, file in files.items() if not file.exists()]
    frame = ChatFrame.of(engine.tokenizer)
    growing: dict[int, dict[int, Conversation]] = {}
    engine.reset_prefix_cache()  # what was computed before this recorder listened would be missing
    recorder = engine.torch_runner.hidden_state_reader = Recorder(len(frame.before))
    try:
        with tqdm(total=len(missing) * SHARD_SIZE, unit="conversation", disable=not progress) as bar:
            for task, conversation in converse(engine, frame, missing, recorder):
                shard = growing.setdefault(task.shard, {})
                shard[task.index] = conversation
                bar.update()
                if len(shard) == SHARD_SIZE:
                    save_conversations(files[task.shard], [shard[i] for i in range(SHARD_SIZE)])
                    del growing[task.shard]
    finally:
        engine.torch_runner.hidden_state_reader = None
    return list(files.values())


def claim_folder(folder: Path, model: LoadedModel) -> None:
    """Write into the folder whose conversations it holds, and about what: words and hidden states of one model teach
    nothing about another.

    Raises:
        TrainingError: it holds another model's, or some that were sampled in another way.
    """
    mine = {"model": model.name, **{name: getattr(model.model_config, name) for name in ("hidden_size", "vocab_size")}}
    recipe = (everyday_questions(), OPENERS, EVERYDAY_SHARE, OPENED_SHARE, TOP_P, GREEDY_SHARE, MAX_ANSWER_TOKENS)
    mine["recipe"] = zlib.crc32(repr(recipe).encode())
    file = folder / SOURCE
    try:
        theirs = json.loads(file.read_text(encoding="utf-8")) if file.exists() else mine
    except (OSError, ValueError) as error:
        again = "delete its folder, and all conversations are sampled again"
        raise TrainingError(f"{file} cannot be read ({error}): {again}") from None
    if theirs != mine:
        raise TrainingError(
            f"the conversations in {folder} are of {theirs}, not of {mine}: delete them, or {ANOTHER_OUT}"
        )
    write_whole(file, json.dumps(mine).encode(), ANOTHER_OUT)


@dataclass(slots=True)
class Task:
    """A conversation that is being sampled."""

    shard: int
    index: int
    draws: random.Random
    """All that is random about it."""
    question_ids: list[str] = field(default_factory=list)
    """The request that made up the question, if one did"""
    prompt: list[int] = field(default_factory=list)
    """Question and frame; empty while the question is being made up"""
    params: SamplingParams = field(default_factory=SamplingParams)


def converse(
    engine: Engine, frame: ChatFrame, shards: list[int], recorder: Recorder
) -> Iterator[tuple[Task, Conversation]]:
    """The conversations of these shards, as they end. The engine's slots are kept busy."""
    places = ((shard, index) for shard in shards for index in range(SHARD_SIZE))
    todo = (Task(*place, random.Random(f"talk {place}")) for place in places)
    running: dict[str, Task] = {}
    ends = {frame.between[0], *engine.eos_token_ids}
    while True:
        while len(running) < engine.config.max_num_seqs and (task := next(todo, None)):
            running[begin(task, engine, frame)] = task
        if not engine.has_unfinished:
            return
        for output in engine.step():
            if output.completions[0].error is not None:
                raise TrainingError(f"the model fails: {output.completions[0].error}")
            task = running.pop(output.request_id)
            if task.prompt:
                token_ids = torch.tensor(task.prompt + output.token_ids, dtype=torch.int32)
                hidden = recorder.take([*task.question_ids, output.request_id], len(token_ids) - 1)
                if hidden is not None:
                    yield task, Conversation(token_ids, len(task.prompt), hidden)
                    continue
                engine.reset_prefix_cache()  # the same once more, and all of it computed
            else:
                # If it was cut off, it ends there: users send half sentences, too.
                task.prompt = output.prompt_token_ids + without_end(output.token_ids, ends) + frame.between
                task.question_ids, task.params = [output.request_id], answer_params(task.draws, may_be_greedy=True)
            running[engine.add_request(task.prompt, task.params, stream=False)] = task


def begin(task: Task, engine: Engine, frame: ChatFrame) -> str:
    """Ask an everyday question, or have the model make one up. Returns the request's id."""
    draws = task.draws
    if draws.random() < EVERYDAY_SHARE:
        questions = everyday_questions()
        rounds, number = divmod(task.shard * SHARD_SIZE + task.index, len(questions))
        task.prompt = frame.around(engine.tokenizer(questions[number], add_special_tokens=False)["input_ids"])
        task.params = answer_params(draws, may_be_greedy=rounds == 0)  # later rounds are to bring other answers
        return engine.add_request(task.prompt, task.params, stream=False)
    seed, end = draws.getrandbits(40), (frame.between[0],)
    opener = draws.choice(OPENERS) if draws.random() < OPENED_SHARE else ""
    begun = frame.before + engine.tokenizer(opener, add_special_tokens=False)["input_ids"]
    params = SamplingParams(max_tokens=MAX_USER_TOKENS, top_p=TOP_P, seed=seed, stop_token_ids=end)
    return engine.add_request(begun, params, stream=False)


def answer_params(draws: random.Random, *, may_be_greedy: bool) -> SamplingParams:
    """How an answer is chosen."""
    temperature = 0.0 if draws.random() < GREEDY_SHARE and may_be_greedy else draws.uniform(0.7, 1)
    return SamplingParams(max_tokens=MAX_ANSWER_TOKENS, temperature=temperature, seed=draws.getrandbits(40))


def without_end(token_ids: list[int], ends: set[int]) -> list[int]:
    """A user's turn without the token that ended it."""
    return token_ids[:-1] if token_ids and token_ids[-1] in ends else token_ids


def save_conversations(file: Path, conversations: list[Conversation]) -> None:
    """All in a row, with each one's length and where its answer begins. The file appears whole or not at all."""
    tensors = {
        "token_ids": torch.cat([each.token_ids for each in conversations]),
        "hidden": torch.cat([each.hidden for each in conversations]),
        "lengths": torch.tensor([len(each.token_ids) for each in conversations], dtype=torch.int32),
        "answer_starts": torch.tensor([each.answer_start for each in conversations], dtype=torch.int32),
    }
    write_whole(file, save(tensors), ANOTHER_OUT)


def load_conversations(file: Path) -> list[Conversation]:
    """The conversations that were saved to a file. Raises TrainingError: it is damaged."""
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        again = "delete it, and its conversations are sampled again"
        raise TrainingError(f"{file} cannot be read ({error}): {again}") from error
    lengths = tensors["lengths"].tolist()
    token_ids, hidden = tensors["token_ids"].split(lengths), tensors["hidden"].split([n - 1 for n in lengths])
    return [Conversation(*parts) for parts in zip(token_ids, tensors["answer_starts"].tolist(), hidden, strict=True)]
