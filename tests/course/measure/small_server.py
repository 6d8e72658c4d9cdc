"""A small server without mistakes, with OpenAI's API: what `test_conform_mutants.py` puts mistakes into."""

import json
import random
from typing import Any

import httpx

from course.measure.conform.checkpoint import CONTEXT, VOCABULARY, Reference


class Server:
    """Answers requests with Hugging Face's tokens, one at a time.

    Args:
        reference: Hugging Face on the tiny checkpoint.
    """

    def __init__(self, reference: Reference) -> None:
        self.reference = reference

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "tiny"}]})
        if request.url.path == "/metrics":
            return httpx.Response(404)
        is_chat = request.url.path == "/v1/chat/completions"
        try:
            body = json.loads(request.content)
            prompt = self.read_chat(body) if is_chat else self.read(body)
        except (ValueError, KeyError, TypeError) as error:
            return httpx.Response(400, text=str(error))
        tokens = self.generate(prompt, body)
        text, reason = self.stopped(self.reference.decode(tokens), body.get("stop") or [])
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        if body.get("stream"):
            return httpx.Response(200, text=self.streamed(text, reason, is_chat))
        content = {"message": {"content": text}} if is_chat else {"text": text, "logprobs": self.logs(prompt, tokens)}
        return httpx.Response(200, json={"choices": [{**content, "finish_reason": reason}], "usage": usage})

    # ------------------------------------------------------------ what is asked

    def read(self, body: dict[str, Any]) -> list[int]:
        """The prompt's tokens. Raises ValueError for what can't be answered."""
        prompt = body["prompt"]
        tokens = self.reference.encode(prompt) if isinstance(prompt, str) else prompt
        stop = body.get("stop") or []
        for name, low, high in (("temperature", 0, 2), ("top_p", 0, 1), ("max_tokens", 1, CONTEXT)):
            if not low <= body.get(name, 1) <= high:
                raise ValueError(f"{name} isn't between {low} and {high}")
        if not isinstance(stop, list) or not all(0 <= token < VOCABULARY for token in tokens):
            raise ValueError("a stop that's no text, or a token that isn't one")
        if len(tokens) + body["max_tokens"] > CONTEXT:
            raise ValueError("it's too long")
        return tokens

    def read_chat(self, body: dict[str, Any]) -> list[int]:
        return self.reference.encode_chat(body["messages"])

    # ------------------------------------------------------------ what is answered

    def generate(self, prompt: list[int], body: dict[str, Any]) -> list[int]:
        rng = random.Random(body.get("seed"))
        penalties = {name: body[name] for name in ("frequency_penalty", "presence_penalty") if name in body}
        if body.get("temperature", 1) == 0 or body.get("top_p", 1) < 1 / VOCABULARY:
            return self.reference.answer(prompt, body["max_tokens"], **penalties)[0]
        return [rng.randrange(40, 300) for _ in range(body["max_tokens"])]

    def stopped(self, text: str, stops: list[str]) -> tuple[str, str]:
        """The text up to the first of the stop strings in it, and why it ended."""
        places = [text.index(stop) for stop in stops if stop in text]
        return (text[: min(places)], "stop") if places else (text, "length")

    def logs(self, prompt: list[int], tokens: list[int]) -> dict[str, Any]:
        own = self.reference.logprobs(prompt, tokens)
        return {"token_logprobs": own, "top_logprobs": [{"best": value} for value in own]}

    def streamed(self, text: str, reason: str, is_chat: bool) -> str:
        """The text in two pieces, and then why it ended."""
        parts = (text[:3], text[3:])
        choices = [{"delta": {"content": part}} if is_chat else {"text": part} for part in parts]
        events = [*choices, {"text": "", "finish_reason": reason}]
        lines = [f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in events]
        return "".join(lines) + "data: [DONE]\n\n"
