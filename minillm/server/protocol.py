"""What clients may send to /v1/completions and /v1/chat/completions, and what it means for the engine.

A parameter is either honoured or refused. Some that we do not have are accepted where their value asks for
nothing (`tools: []`); the list is NEUTRAL. A JSON null is as good as absent, as in OpenAI's API.
"""

import math
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from minillm.core.params import MAX_NAME, SamplingParams, explain
from minillm.frontend.prompts import Prompt
from minillm.frontend.structured_outputs import StructuredOutputsParams
from minillm.server.errors import ApiError

MAX_PROMPTS = 64
"""Prompts in one /v1/completions request."""
COMPLETION_TOKENS = 16
"""max_tokens of a completion that names none, as in OpenAI's API."""

MAX_MESSAGE = 1000
"""Characters of an error message: it quotes what it got, which may be long."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "metadata": ({},),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": ("none",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Parameters of other servers, and the values for which doing nothing is the right thing to do."""

T = TypeVar("T")
List = Annotated[list[T], Field(fail_fast=True)]
"""The first bad item is enough: a body has room for half a million, and the event loop waits meanwhile."""
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Stop = Annotated[List[Annotated[str, Field(min_length=1)]], Field(max_length=16)]


class StrictJson(BaseModel):
    """A JSON object in which unknown fields and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, fields: Any) -> Any:
        """Of unknown fields only the first stays, to be refused: one is enough, and there may be very many."""
        if not isinstance(fields, dict):
            return fields
        given = {name: value for name, value in fields.items() if value is not None}
        unknown = next((name for name in given if name not in cls.model_fields), None)
        return {name: value for name, value in given.items() if name in cls.model_fields or name == unknown}


class StreamOptions(StrictJson):
    """OpenAI's `stream_options`."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class ResponseFormat(StrictJson):
    """OpenAI's `response_format`. Of a `json_schema` its `schema` is read, and followed strictly in any case."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] = Field(default_factory=dict)

    def as_params(self) -> StructuredOutputsParams | None:
        """For the engine. Raises InvalidSamplingParamsError if the schema is neither an object nor a string."""
        schema = self.json_schema.get("schema") if self.type == "json_schema" else {"type": "object"}
        return None if self.type == "text" else StructuredOutputsParams(json=schema)


class TextPart(StrictJson):
    """A part of a message: text only."""

    type: Literal["text"]
    text: str


class Message(StrictJson):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | List[TextPart]

    def as_template_message(self) -> dict[str, str]:
        """For the model's chat template. OpenAI renamed `system` to `developer`; templates know the old name."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class GenerationBody(StrictJson):
    """The parameters that both endpoints share."""

    is_chat: ClassVar[bool]
    default_tokens: ClassVar[float]
    """Output tokens of a request that names no limit, if the window has room for them."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=64)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    seed: Seed | None = None
    stop: str | Stop = Field(default_factory=list)
    user: str | None = Field(None, description="names the end user: the tenant, with scheduling_order=fair")
    response_format: ResponseFormat | None = None
    # As in vLLM:
    top_k: int = Field(0, ge=-1, description="0 and -1 = all")
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0, le=100)
    stop_token_ids: List[int] = Field(default_factory=list, max_length=64)
    ignore_eos: bool = False
    priority: int = Field(0, ge=-(2**31), lt=2**31, description="lower is earlier, with scheduling_order=priority")

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, stop: str | list[str]) -> str | list[str]:
        if stop == "":
            raise ValueError("a stop string must not be empty")
        return stop

    @model_validator(mode="after")
    def _stream_options_with_a_stream(self) -> "GenerationBody":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only for stream: true")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def token_limit(self) -> int | None:
        """What the client asked for at most; None = it did not say."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        raise NotImplementedError

    def prompts(self) -> list[Prompt]:
        raise NotImplementedError

    def sampling(self, max_tokens: int) -> SamplingParams:
        """For the engine.

        Raises:
            InvalidSamplingParamsError: the engine does not take these values.
        """
        shared = self.model_dump(include=SamplingParams.model_fields.keys() & GenerationBody.model_fields.keys())
        own: dict[str, Any] = {"max_tokens": max_tokens, "top_k": max(self.top_k, 0), "logprobs": self.num_logprobs}
        own["structured_outputs"] = self.response_format and self.response_format.as_params()
        return SamplingParams(**{**shared, **own})


class CompletionBody(GenerationBody):
    """/v1/completions."""

    is_chat: ClassVar[bool] = False
    default_tokens: ClassVar[float] = COMPLETION_TOKENS

    prompt: str | List[int] | List[str] | List[List[int]]
    logprobs: int | None = Field(None, ge=0, le=20)

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    def prompts(self) -> list[Prompt]:
        """One or several; each becomes `n` choices."""
        many = isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int)
        prompts = cast(list[Prompt], self.prompt if many else [self.prompt])
        if len(prompts) > MAX_PROMPTS:
            raise ApiError(400, f"{len(prompts)} prompts in one request: send at most {MAX_PROMPTS}", param="prompt")
        return prompts


class ChatBody(GenerationBody):
    """/v1/chat/completions."""

    is_chat: ClassVar[bool] = True
    default_tokens: ClassVar[float] = math.inf

    messages: List[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)

    @model_validator(mode="after")
    def _one_limit_and_logprobs(self) -> "ChatBody":
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ: send one (max_tokens is the old name)")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def prompts(self) -> list[Prompt]:
        return [[message.as_template_message() for message in self.messages]]


def parse(body: bytes, kind: type[GenerationBody]) -> GenerationBody:
    """A request body, checked.

    Raises:
        ApiError: 400: not JSON, an unknown or unsupported parameter, a value of the wrong type or out of range.
    """
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", "invalid_json") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "the body must be a JSON object", "invalid_json")
    fields = {name: value for name, value in fields.items() if not _asks_nothing(name, value)}
    for name in fields.keys() & NEUTRAL.keys():
        raise ApiError(400, f"{name} is not supported by this server: leave it out", "unsupported_parameter", name)
    try:
        return kind.model_validate(fields)
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", "invalid_value") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = ".".join(str(part)[:MAX_NAME] for part in first["loc"]) or None
        code = "unknown_parameter" if first["type"] == "extra_forbidden" else "invalid_value"
        raise ApiError(400, _explain(kind, error), code, param) from None


def _asks_nothing(name: str, value: Any) -> bool:
    """Null, or equal and of the same type: 1 is not False here."""
    return value is None or any(type(value) is type(neutral) and value == neutral for neutral in NEUTRAL.get(name, ()))


def _explain(kind: type[GenerationBody], error: ValidationError) -> str:
    try:
        message = explain(kind, error)
    except RecursionError:  # it quotes what it got
        return "a value is nested too deeply"
    return message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + " ..."
