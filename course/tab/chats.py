"""Chats with a real model in the tab: the engine's scheduler, on the decoder that the page has loaded.

All conversations share one engine, whose steps are computed here and now. The page asks for some of them at a time, so
that it can draw between two.
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from course.lab.view.trace import DIGITS, Told
from course.tab.model.in_tab import TabModel, loaded
from course.tab.model.runner import CompiledDecoder, TabRunner
from course.tab.watched import Watched
from minillm.core.errors import ConfigError, RequestError
from minillm.core.params import SamplingParams
from minillm.core.timeline import WallClock
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import RequestOutput
from minillm.policies.config import EngineConfig

CONTEXT, BLOCKS = 512, 256
"""Longest conversation, tokens; and KV blocks for eight of them, which are the most that run together."""
USUAL: dict[str, Any] = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "enable_prefix_caching": True,
    "batching": "continuous",
}
"""Fields that can be changed, where they begin."""
STEPS_S = 0.05
"""So long the page goes without news, or for one step if that takes longer."""


class Chats:
    """Conversations, and the engine that answers them.

    Args:
        fields: of USUAL, those that differ.
        computed_by: decoder and model; None = what the page has loaded.
    Raises:
        ConfigError: a field is none of them, or its value is refused.
    """

    def __init__(self, fields: Mapping[str, Any], computed_by: tuple[CompiledDecoder, TabModel] | None = None) -> None:
        self._decoder: CompiledDecoder
        self._decoder, self._model = computed_by or loaded()
        self._clock = WallClock()
        self._began = self._clock.now()
        self._numbers = itertools.count()
        self._turns: defaultdict[int, list[dict[str, str]]] = defaultdict(list)
        self._chat_of: dict[str, int] = {}
        """Requests in flight: whose they are."""
        self._arrived: list[Told] = []
        self._handed_over: list[RequestOutput] = []
        """Requests that have ended, and whose last text the page had not taken when they did."""
        self._fields: dict[str, Any] = dict(USUAL)
        self._serving = self._deployed(fields)

    def _deployed(self, fields: Mapping[str, Any]) -> Watched:
        if unknown := set(fields) - set(USUAL):
            raise ConfigError(f"not to be changed here: {', '.join(sorted(unknown))}")
        wanted = {**self._fields, **fields}
        config = EngineConfig(quantization="int4", max_model_len=CONTEXT, num_kv_blocks=BLOCKS, **wanted)
        runner = TabRunner(self._decoder, config, self._clock)
        model: Any = self._model  # a LoadedModel, as far as an engine asks
        self._fields = wanted
        return Watched(Engine.on_runner(config, runner, self._clock, model=model), -self._began)

    def change(self, fields: Mapping[str, Any]) -> Told:
        """Serve with other settings from now on, from an empty KV cache. Returns them.

        Raises:
            ConfigError: some requests are in flight, whose keys and values would be lost.
        """
        if self._serving.engine.has_unfinished:
            raise ConfigError("wait for the answers that are being written, or stop them: the KV cache begins anew")
        self._serving = self._deployed(fields)
        return self.settings()

    def settings(self) -> Told:
        """The switches, the slots, and the token budget of a step."""
        config = self._serving.engine.config
        return {"fields": dict(self._fields), "slots": config.max_num_seqs, "budget": config.max_num_batched_tokens}

    def say(self, chat: int, text: str, max_tokens: int, temperature: float) -> int:
        """Ask something in a conversation. Returns the request's number.

        Raises:
            RequestError: the conversation is too long, or it is still being answered.
        """
        if chat in self._chat_of.values():
            raise RequestError("this conversation is still being answered")
        number, turns = next(self._numbers), self._turns[chat]
        asked = [*turns, {"role": "user", "content": text}]
        params = SamplingParams(temperature=temperature, max_tokens=max_tokens)
        self._serving.engine.add_request(asked, params, request_id=str(number))
        self._turns[chat] = asked
        self._chat_of[str(number)] = chat
        at = self._serving.engine.core.requests[str(number)].timeline.arrival
        arrived = {"i": number, "at": self._serving.moment(at), "kind": f"chat {chat + 1}", "most": max_tokens}
        self._arrived.append(arrived)
        return number

    def stop(self, number: int) -> None:
        """End a request now: what its answer has so far stays."""
        output = self._serving.engine.abort(str(number))
        if output is not None:
            self._end(output)

    def forget(self, chat: int) -> None:
        """Begin a conversation anew."""
        if chat in self._chat_of.values():
            raise RequestError("this conversation is still being answered")
        self._turns.pop(chat, None)

    def go_on(self) -> Told:
        """Serve for a moment, and tell what happened since the last call.

        Returns:
            As LiveServer.go_on; and `said`, the new text of each request by its number.
        """
        engine, begin = self._serving.engine, self._clock.now()
        ended = self._taken(begin)
        said: defaultdict[str, str] = defaultdict(str)
        while engine.has_unfinished and self._clock.now() - begin < STEPS_S:
            for output in engine.step():
                said[output.request_id] += output.completions[0].new_text
                if output.finished:
                    self._end(output)
        arrived, self._arrived = self._arrived, []
        told = {"now": round(self._serving.now, DIGITS), "arrived": arrived, "ended": ended, "said": dict(said)}
        return {**told, "in_flight": self._serving.in_flight(), "steps": self._serving.new_steps()}

    def _end(self, output: RequestOutput) -> None:
        chat = self._chat_of.pop(output.request_id)
        self._turns[chat].append({"role": "assistant", "content": output.text})
        self._handed_over.append(output)

    def _taken(self, now: float) -> list[Told]:
        """The page asks again, so it has what it was told last: the stream phase of those requests ends."""
        handed_over, self._handed_over = self._handed_over, []
        for output in handed_over:
            output.timeline.accept(now)
        return [self._serving.ended(output) for output in handed_over]
