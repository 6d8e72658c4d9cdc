"""What OpenAI's API has and this server does not: for each parameter and endpoint, what to use instead."""

from typing import Any

STATELESS = "nothing is stored here; send the whole conversation each time"
PLAIN_TEXT = "text is all that this server reads and writes"
TOOLS = "functions are called through tools of /v1/chat/completions"
CACHE = "every prompt prefix is cached by itself, for as long as there is room (prefix_eviction)"

UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "access_programs": ((), "leave it out"),
    "audio": ((), PLAIN_TEXT),
    "background": ((False,), "keep the connection open, or stream"),
    "background_options": ((), "keep the connection open, or stream"),
    "best_of": ((1,), "ask for n answers with logprobs, and choose"),
    "context_management": (([],), "shorten the conversation before you send it"),
    "conversation": ((), STATELESS),
    "echo": ((False,), "put your prompt before the answer yourself"),
    "function_call": (("none",), TOOLS),
    "functions": (([],), TOOLS),
    "image": ((), PLAIN_TEXT),
    "include": (([],), "the answer has all that there is; log-probabilities are in /v1/chat/completions"),
    "max_tool_calls": ((), "no tool runs in this server"),
    "metadata": (({},), "nothing is stored here; keep it beside the answer's id"),
    "min_tokens": ((0,), "ban the end-of-sequence token with logit_bias, or set ignore_eos"),
    "modalities": ((["text"],), PLAIN_TEXT),
    "moderation": ((), "have another model judge the text"),
    "parallel_tool_calls": ((True, False), TOOLS),
    "prediction": ((), 'start the server with --speculative \'{"method": "ngram"}\''),
    "previous_response_id": ((), STATELESS),
    "prompt": ((), "fill in the template yourself; /v1/completions takes a prompt as text"),
    "prompt_cache_options": ((), CACHE),
    "prompt_cache_retention": ((), CACHE),
    "reasoning": (({},), "say in the prompt how to think; what is thought is part of the answer"),
    "reasoning_effort": (("none",), "say in the prompt how to think; what is thought is part of the answer"),
    "service_tier": (("auto", "default"), "send a priority to a server with --scheduling-order priority"),
    "store": ((False,), STATELESS),
    "suffix": (("",), "put it into the prompt as your model was trained to read it"),
    "tool_choice": (("none", "auto"), TOOLS),
    "tools": (([],), TOOLS),
    "top_logprobs": ((0,), "log-probabilities are in /v1/chat/completions"),
    "truncation": (("disabled",), "shorten the conversation before you send it; /tokenize counts its tokens"),
    "verbosity": (("medium",), "say in the prompt how long the answer should be"),
    "web_search_options": ((), "search yourself, and put what you found into the prompt"),
}
"""By parameter: the values for which doing nothing is the right thing to do, and what to do instead of the others."""

ONE_MODEL = "this server runs one model, which writes text: /v1/chat/completions, /v1/completions, /v1/responses"
ENDPOINTS = {
    **dict.fromkeys(("conversations", "chat", "completions", "responses"), STATELESS),
    **dict.fromkeys(("files", "uploads", "batches"), "send requests as they come; the queue is the batch"),
    **dict.fromkeys(("vector_stores", "containers", "skills"), "search and run code beside the server, and send text"),
    **dict.fromkeys(("assistants", "threads", "beta"), STATELESS),
    "fine_tuning": "train elsewhere, and serve the result with --model",
    "evals": "point an evaluation client (lm-eval, say) at /v1/completions",
    "admin": "keys are in --api-key-file",
    "webhooks": "keep the connection open, or stream",
}
"""By the first word of a path below /v1; all others get ONE_MODEL."""


def without_effect(name: str, value: Any) -> bool:
    """Null, or equal and of the same type as a value that asks for nothing: 1 is not False here."""
    neutral, _ = UNSUPPORTED.get(name, ((), ""))
    return value is None or any(type(value) is type(one) and value == one for one in neutral)


def instead_of(path: str) -> str:
    """After the message that there is no such path."""
    _, first, *rest = path.split("/")
    return f": {ENDPOINTS.get(rest[0], ONE_MODEL)}" if first == "v1" and rest else ""
