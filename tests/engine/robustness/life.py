"""One engine's life in the soak: built at random, used and abused at random, and searched when it is at rest."""

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

from integrity import check_engine
from robustness.faults import Faults, Panic, TickingClock
from robustness.judge import TIE, Reference, check_at_rest, check_ending, check_steps, check_text
from robustness.toggles import MODEL_LEN, Models, is_lossless, random_config

from course.lab.snapshot import RequestView, take_snapshot
from minillm.core.errors import ConfigError, RequestError
from minillm.core.params import SamplingParams
from minillm.core.request import FinishReason, Request
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import RequestOutput

STEPS_TO_DRAIN = 20_000
"""Whoever is still there after so many steps waits for ever."""
WORDS = ("time", " queue", " the", " a", "\n", " tokens", " und", " 🎉", " données", " 12", ",", ".")
NONSENSE: tuple[tuple[Any, dict[str, Any]], ...] = (
    ("", {}),
    ([], {}),
    ([-1], {}),
    ([10**9], {}),
    ([1, "two"], {}),
    (b"bytes", {}),
    (None, {}),
    (3.5, {}),
    ("\ud800", {}),
    ([{"no": "role"}], {}),
    ([5] * (MODEL_LEN + 1), {}),
    ([5], {"temperature": -1}),
    ([5], {"max_tokens": 0}),
    ([5], {"stop": [""]}),
    ([5], {"no_such_field": 1}),
    ([5], {"temperature": float("nan")}),
)


@dataclass
class Tally:
    """What happened, over all lives."""

    lives: int = 0
    refused_configs: int = 0
    steps: int = 0
    endings: dict[str, int] = field(default_factory=dict)
    refusals: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    verified: int = 0
    """Tokens of greedy outputs that were compared with the reference."""
    preemptions: int = 0
    drafts_passed: int = 0


class Life:
    """An engine and everybody who wants something of it. All that is random comes from `seed`: so is its time.

    Raises:
        ConfigError: these toggles cannot be had together.
    """

    def __init__(self, models: Models, reference: Reference, tally: Tally, seed: str) -> None:
        self.rng, self.models, self.reference, self.tally = random.Random(seed), models, reference, tally
        rng = self.rng
        self.config = random_config(rng, models)
        self.model = models.get(self.config.dtype, self.config.quantization)
        clock = TickingClock(random.Random(rng.random()), coarse=rng.random() < 0.3)
        self.engine = Engine(self.config, self.model, clock=clock)
        rate, ctrl_c = rng.choice([(0.0, False), (0.0, False), (0.01, False), (0.01, True), (0.2, True)])
        self.faults = Faults(self.engine, random.Random(rng.random()), rate, ctrl_c)
        self.crowding = rng.choice([0.05, 0.2, 0.5, 1.5])
        """Requests that come with each step, on average."""
        self.requests: dict[str, list[Request]] = {}
        """Those in flight, by the id of their group."""
        self.shown: dict[str, list[str]] = {}
        """The text that was streamed of each, piece by piece; of those that stream."""
        self.views: dict[Request, RequestView] = {}
        self.names = itertools.count()
        # So that prefixes are shared, and drafts have something to find.
        self.openings = [self._tokens(rng.randrange(1, 60)) for _ in range(3)]

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.arrivals()
            self.departures()
            if self.rng.random() < 0.01:
                self.engine.reset_prefix_cache()
            if self.rng.random() < 0.05:
                take_snapshot(self.engine, self.views)
            self.step()
        self.end()

    # ---------------------------------------------------------------- what happens to it

    def arrivals(self) -> None:
        while self.rng.random() < self.crowding / (1 + self.crowding):
            self.ask()
        if self.rng.random() < 0.1:
            prompt, fields = self.rng.choice(NONSENSE)
            self.must_refuse(prompt, fields)
        if self.requests and self.rng.random() < 0.02:
            self.must_refuse([5], {}, request_id=self.rng.choice(list(self.requests)))

    def ask(self) -> None:
        """A request like any other. If it is refused, nothing has changed."""
        name, stream = f"r{next(self.names)}", self.rng.random() < 0.7
        rank = self.rng.randrange(3)
        options = {"request_id": name, "priority": rank, "tenant": str(rank), "stream": stream}
        try:
            self.engine.add_request(self._prompt(), self._params(), **options)
        except RequestError:
            self.tally.refusals += 1
            assert name not in self.engine.outputs.groups
            return
        self.requests[name] = [sequence.request for sequence in self.engine.outputs.groups[name].sequences]
        self.shown[name] = [""] * len(self.requests[name])
        self.faults.break_text(name)

    def must_refuse(self, prompt: Any, fields: dict[str, Any], **options: Any) -> None:
        try:
            self.engine.add_request(prompt, SamplingParams(**fields), **options)
        except RequestError as error:
            said = str(error)
            self.tally.refusals += 1
        else:
            said = None
        assert said, f"this was accepted, or refused without a word: {str(prompt)[:50]!r} {fields}"

    def departures(self) -> None:
        if self.requests and self.rng.random() < 0.05:
            name = self.rng.choice(list(self.requests))
            output = self.engine.abort(name)
            assert output is not None and output.finished
            self.hear([output])
        if self.rng.random() < 0.05:
            assert self.engine.abort("nobody") is None
        if self.rng.random() < 0.002:
            self.hear(self.engine.abort_all())
            check_at_rest(self.engine)

    def step(self) -> None:
        try:
            outputs = self.engine.step()
        except (KeyboardInterrupt, Panic):
            assert self.faults.ctrl_c
            self.engine.reset_prefix_cache()
            # What this step yielded was lost on its way here: whoever ended is seen by its request.
            for name in self.shown:
                self.shown[name] = []
            outputs = []
            for name, requests in list(self.requests.items()):
                if all(request.finish_reason for request in requests):
                    self.bury(name)
        self.tally.steps += 1
        self.hear(outputs)
        check_engine(self.engine)

    def end(self) -> None:
        """Let everybody finish, or send them all home."""
        self.faults.calm = True
        if self.rng.random() < 0.3:
            self.hear(self.engine.abort_all())
        for _ in range(STEPS_TO_DRAIN):
            if not self.engine.has_unfinished:
                break
            self.step()
        else:
            raise AssertionError(f"after {STEPS_TO_DRAIN} steps {len(self.requests)} requests still wait")
        assert not self.requests, f"never heard of again: {list(self.requests)}"
        check_at_rest(self.engine)
        check_steps(self.engine)
        take_snapshot(self.engine, self.views)
        self.tally.lives += 1
        self.tally.preemptions += self.engine.scheduler.num_preemptions
        self.tally.drafts_passed += sum(share.num_accepted for step in self.engine.steps for share in step.shares)
        for kind, count in self.faults.kinds.items():
            self.tally.faults[kind] = self.tally.faults.get(kind, 0) + count

    # ---------------------------------------------------------------- what comes of it

    def hear(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            name = output.request_id
            assert name in self.requests, f"{name} has ended before, or was never asked for"
            for i, completion in enumerate(output.completions):
                if self.shown[name]:
                    self.shown[name][i] += completion.new_text
                    assert self.shown[name][i] == completion.text, "what was streamed is not the text"
                if completion.logprobs is not None and completion.finish_reason is not FinishReason.ERROR:
                    assert len(completion.logprobs) == len(completion.token_ids)
                    assert all(got.token_id == token for got, token in zip(completion.logprobs, completion.token_ids))
            if output.finished:
                self.bury(name)

    def bury(self, name: str) -> None:
        del self.shown[name]
        for request in self.requests.pop(name):
            check_ending(request, self.engine, may_fail=self.faults.count > 0)
            check_text(request, self.model.tokenizer)
            reason = str(request.finish_reason)
            self.tally.endings[reason] = self.tally.endings.get(reason, 0) + 1
            greedy = request.params.temperature == 0 and not request.params.has_penalty
            if greedy and request.output_token_ids and is_lossless(self.config):
                self.verify(request)

    def verify(self, request: Request) -> None:
        regret = self.reference.regret(request.prompt_token_ids, request.output_token_ids)
        self.tally.verified += request.num_output_tokens
        assert regret <= TIE, f"{request.request_id} is not the greedy output: a logit lies {regret:.4f} below"

    # ---------------------------------------------------------------- what is asked for

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(1000, 9000) for _ in range(count)]

    def _prompt(self) -> Any:
        rng = self.rng
        kind = rng.random()
        if kind < 0.15:
            return "".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 30)))
        if kind < 0.2:
            return [{"role": "user", "content": rng.choice(WORDS)}]
        if kind < 0.6:
            return rng.choice(self.openings) + self._tokens(rng.randrange(0, 20))
        if kind < 0.7:
            return self._tokens(rng.randrange(1, 6)) * rng.randrange(1, 12)
        return self._tokens(rng.randrange(1, 2 * MODEL_LEN // 3))

    def _params(self) -> SamplingParams:
        rng = self.rng
        fields: dict[str, Any] = {"max_tokens": rng.choice([1, 2, 5, 20, 60])}
        if rng.random() < 0.6:
            fields["temperature"] = 0
        else:
            fields |= {"temperature": rng.choice([0.3, 1.0, 2.0]), "top_k": rng.choice([0, 1, 50])}
            fields |= {"top_p": rng.choice([1.0, 0.5]), "min_p": rng.choice([0.0, 0.05])}
            fields["seed"] = rng.choice([None, 7])
            fields["n"] = rng.choice([1, 1, 1, 3])
        if rng.random() < 0.15:
            fields |= {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2}
        if rng.random() < 0.15:
            fields["stop"] = rng.sample(["e", " a", "the", "🎉", "ing"], 2)
        if rng.random() < 0.1:
            fields["stop_token_ids"] = self._tokens(20)
        if rng.random() < 0.15:
            fields["logprobs"] = rng.choice([0, 3])
        fields["ignore_eos"] = rng.random() < 0.5
        return SamplingParams(**fields)


def live(models: Models, reference: Reference, tally: Tally, seed: str, num_steps: int) -> None:
    """One life, if its toggles can be had together."""
    try:
        life = Life(models, reference, tally, seed)
    except ConfigError:
        tally.refused_configs += 1
        return
    life.run(num_steps)
