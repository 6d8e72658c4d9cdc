"""Answers in OpenAI's shapes. A stream's chunks differ in a few bytes only: the rest is built once a request."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from minillm.core.request import FinishReason
from minillm.core.timeline import STAMPS, Timeline
from minillm.frontend.outputs import Completion, RequestOutput
from minillm.server.calls import TokenCounts, completions_of
from minillm.server.errors import ApiError
from minillm.server.logprobs import TokenTexts, chat_logprobs, completion_logprobs
from minillm.server.protocol import GenerationBody
from minillm.server.tools import ToolCallReader

DONE = b"data: [DONE]\n\n"


class AnswerShape:
    """Shapes the answer to one request.

    Args:
        body: decides between chat and completion, and whether usage is reported in a stream.
        request_id: also the answer's id.
        created: Unix time, seconds.
        model: the name that the API knows it by.
        texts: for log-probabilities.
        prompts: their token ids, which decide how an answer's first token reads. Only needed for the log-probabilities
            of completions, and for usage in each chunk.
    """

    def __init__(
        self,
        body: GenerationBody,
        request_id: str,
        created: int,
        model: str,
        texts: TokenTexts,
        prompts: Sequence[Sequence[int]] = (),
    ) -> None:
        self.is_chat, self.include_usage = body.is_chat, body.stream_options.include_usage
        self.texts = texts
        kind = ("chat.completion.chunk" if body.stream else "chat.completion") if body.is_chat else "text_completion"
        self.head = {"id": request_id, "object": kind, "created": created, "model": model}
        opening = orjson.dumps(self.head)[:-1]
        self._chunk_start = b"data: " + opening + b',"choices":[{"index":'
        self._chunk_end = b'}],"usage":null}\n\n' if self.include_usage else b"}]}\n\n"
        per_choice = [len(prompt) for prompt in prompts for _ in range(body.n)]
        self._prompt_lengths = per_choice if body.stream_options.continuous_usage_stats else []
        self._greeted: set[int] = set()
        """Choices whose role has been sent."""
        has_offsets = body.num_logprobs is not None and not body.is_chat
        self._offsets = [texts.offsets(prompt) for prompt in prompts for _ in range(body.n)] if has_offsets else []
        """Where each choice's tokens begin in its text."""
        offered = {tool.function.name for tool in body.offered_tools}
        self._has_tools = bool(offered)
        self._readers: defaultdict[int, ToolCallReader] = defaultdict(lambda: ToolCallReader(offered))

    # ---------------------------------------------------------------- streamed

    def chunk(self, index: int, news: Completion) -> bytes:
        """One event: what is new in choice `index`. Role, first text and ending need no chunks of their own:
        with one chunk for each delivery, gaps between chunks are gaps between tokens."""
        text = orjson.dumps(news.new_text)
        reason: str | None = news.finish_reason
        if not self.is_chat:
            content = b',"text":' + text
        elif self._has_tools:
            delta, reason = self._read(index, news.new_text, news.finish_reason)
            for number, call in enumerate(calls := delta.get("tool_calls", []), self._readers[index].num_calls):
                call["index"] = number - len(calls)
            content = b',"delta":' + orjson.dumps(delta)
        elif index in self._greeted:
            content = b',"delta":{"content":' + text + b"}"
        else:
            self._greeted.add(index)
            content = b',"delta":{"role":"assistant","content":' + text + b"}"
        logprobs = orjson.dumps(self._logprobs(index, news, news.num_old_tokens))
        tail = b',"logprobs":' + logprobs + b',"finish_reason":' + orjson.dumps(reason)
        end = self._usage_so_far(index, news) if self._prompt_lengths else self._chunk_end
        return self._chunk_start + str(index).encode() + content + tail + end

    def _usage_so_far(self, index: int, news: Completion) -> bytes:
        """The end of a chunk, with the usage of its own choice: as in vLLM."""
        prompt, output = self._prompt_lengths[index], news.num_old_tokens + news.num_new_tokens
        return b'}],"usage":' + orjson.dumps(token_counts(prompt, output)) + b"}\n\n"

    def chunks(self, news: Iterable[tuple[int, Completion]]) -> bytes:
        """An event for each choice that has something new."""
        return b"".join([self.chunk(index, completion) for index, completion in news])

    def closing(self, outputs: list[RequestOutput]) -> bytes:
        """The last events: usage, with `stream_options.include_usage`, and [DONE]."""
        told = {**self.head, "choices": [], "usage": usage(outputs), **times(outputs)}
        return (b"data: " + orjson.dumps(told) + b"\n\n" if self.include_usage else b"") + DONE

    def _read(self, index: int, piece: str, reason: FinishReason | None) -> tuple[dict[str, Any], str | None]:
        """A piece of an answer that may call tools, as a message or a part of one, and why it ended, if it did."""
        text, calls = self._readers[index].read(piece, is_last=reason is not None)
        calling = reason is FinishReason.STOP and self._readers[index].num_calls
        role = {} if index in self._greeted else {"role": "assistant"}
        self._greeted.add(index)
        message = {**role, "content": text or None, **({"tool_calls": calls} if calls else {})}
        return message, "tool_calls" if calling else reason

    def _logprobs(self, index: int, completion: Completion, start: int) -> dict[str, Any] | None:
        """Log-probabilities of the tokens from `start` on; None if they were not asked for."""
        if completion.request_logprobs is None:
            return None
        entries = completion.request_logprobs[start : completion.num_tokens]
        if self.is_chat:
            return chat_logprobs(entries, self.texts)
        offsets = self._offsets[index].add(completion.token_ids[start:])
        if completion.finish_reason is not None:  # a stop string may have cut off the text of the last tokens
            offsets = [min(offset, len(completion.text)) for offset in offsets]
        return completion_logprobs(entries, self.texts, offsets)

    # ---------------------------------------------------------------- whole

    def whole(self, outputs: list[RequestOutput]) -> bytes:
        """The answer to a request without `stream`."""
        choices = [self._choice(index, completion) for index, completion in enumerate(completions_of(outputs))]
        return orjson.dumps({**self.head, "choices": choices, "usage": usage(outputs), **times(outputs)})

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        text, logprobs = completion.text, self._logprobs(index, completion, 0)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        reason: str | None = completion.finish_reason
        if self._has_tools:
            called, reason = self._read(index, text, completion.finish_reason)
            message |= called
        content = {"message": message} if self.is_chat else {"text": text}
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}


def num_new_logprobs(news: Completion) -> int:
    """Log-probabilities that a chunk would show: those of its new tokens, and of the likeliest ones beside them."""
    return news.num_new_tokens * (1 + len(news.request_logprobs[-1].top)) if news.request_logprobs else 0


def usage(outputs: list[RequestOutput]) -> dict[str, Any]:
    """Token counts over all prompts and choices."""
    tokens = TokenCounts.of(outputs)
    return {**token_counts(tokens.prompt, tokens.output), "prompt_tokens_details": {"cached_tokens": tokens.cached}}


def token_counts(prompt: int, output: int) -> dict[str, int]:
    """The part of a usage that each chunk may have."""
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def times(outputs: list[RequestOutput]) -> dict[str, Any]:
    """The server's own stamps in a field `minillm` beside `usage`, so that a client can tell queue from prefill; only
    where there is one text.

    Seconds of the server's clock, which has any origin; `GET /health` has a field `clock`, what it shows now. vLLM with
    --enable-per-request-metrics sends lengths instead, in milliseconds, in a field `metrics`.
    """
    alone = len(outputs) == 1 and len(outputs[0].completions) == 1
    return {"minillm": server_times(outputs[0].timeline)} if alone else {}


def server_times(timeline: Timeline) -> dict[str, float]:
    """The stamps by name, but for the last byte at the client: no server sees it. What has not happened is left out."""
    return {name: stamp for name in STAMPS[:-1] if (stamp := getattr(timeline, name)) is not None}


def error_event(error: ApiError) -> bytes:
    """An error as a stream's last event: it has a status already. No [DONE] follows, as the answer is not whole."""
    return b"data: " + error.body + b"\n\n"
