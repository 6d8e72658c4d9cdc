"""What clients may send to /v1/completions, /v1/chat/completions and /v1/responses, and what it means for the engine.

A parameter is either honoured or refused. Those that we do not have are accepted where their value asks for nothing
(`store: false`): see unsupported.toml. A JSON null is as good as absent, as in OpenAI's API.
"""

import math
from codecs import BOM_UTF8
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

import orjson
from pydantic import Field, Tag, ValidationError, ValidatorFunctionWrapHandler, WrapValidator, model_validator

from minillm.core.errors import InvalidSamplingParamsError
from minillm.core.params import SamplingParams
from minillm.frontend.prompts import Prompt
from minillm.frontend.structured_outputs import StructuredOutputsParams
from minillm.server.errors import ApiError
from minillm.server.strict_json import LIST, LISTS, OBJECT, TEXT, TEXTS, List, StrictJson, one_of, refusal, tag_of_type
from minillm.server.tools import NamedTool, Tool, ToolCall
from minillm.server.unsupported import PARAMETERS
from minillm.strict_model import MAX_NAME

MAX_PROMPTS = 64
"""Prompts in one /v1/completions request."""
COMPLETION_TOKENS = 16
"""max_tokens of a completion that names none, as in OpenAI's API."""

Body = TypeVar("Body", bound=StrictJson)
TokenId = Annotated[int, Field(strict=False)]
"""A name in JSON is always a string."""
Bias = Annotated[float, Field(ge=-100, le=100)]
MAX_BIASES = 1024
MAX_TEMPLATE_VARIABLES = 16
MAX_SALT = 128
"""Characters of a cache_salt, as in vLLM."""
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
StopString = Annotated[str, Field(min_length=1)]
Stop = Annotated[
    Annotated[StopString, TEXT] | Annotated[List[StopString], Field(max_length=16), LIST],
    one_of("a string, or a list of at most 16 strings"),
]
Schema = Annotated[
    Annotated[str, TEXT] | Annotated[dict[str, Any], OBJECT], one_of("a JSON schema: an object, or its text")
]
TEXT_PARTS = ("text", "input_text", "output_text")


class StreamOptions(StrictJson):
    """OpenAI's `stream_options`."""

    include_usage: bool = False
    continuous_usage_stats: bool = Field(False, description="vLLM's: each chunk has its choice's usage so far")


class JsonSchema(StrictJson):
    """`response_format.json_schema`."""

    own_schema: Schema | None = Field(None, alias="schema")
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(JsonSchema):
    """OpenAI's `response_format`: of a `json_schema` its `schema` is read, and followed strictly in any case. In
    `text.format` of a response name and schema stand outside."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_a_schema(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.schema_to_follow is None:
            raise ValueError("type json_schema needs a schema: json_schema.schema, or in text.format schema")
        return self

    @property
    def schema_to_follow(self) -> str | dict[str, Any] | None:
        return self.json_schema.own_schema if self.json_schema else self.own_schema

    def as_params(self) -> StructuredOutputsParams | None:
        """The format as the engine takes it; None = any text."""
        schema = self.schema_to_follow if self.type == "json_schema" else {"type": "object"}
        return None if self.type == "text" else StructuredOutputsParams(json=schema)


class ResponsesText(StrictJson):
    """`text` of a response."""

    format: ResponseFormat | None = None


class TextPart(StrictJson):
    """A part of a message: text only."""

    type: Literal["text", "input_text", "output_text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, part: Any) -> Any:
        """Said once, instead of once for each field of an image."""
        if isinstance(part, dict) and isinstance(kind := part.get("type"), str) and kind not in TEXT_PARTS:
            raise ValueError(f"a part of type {kind[:MAX_NAME]!r}: text is all that this server reads")
        return part


class Message(StrictJson):
    """One message of a chat, or of a response's input."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        Annotated[str, TEXT] | Annotated[List[TextPart], LIST], one_of("a string, or a list of text parts")
    ] = ""
    name: str | None = None
    tool_calls: List[ToolCall] = Field(default_factory=list)
    tool_call_id: str | None = None
    type: Literal["message"] = "message"
    id: str | None = None
    status: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_a_message(cls, item: Any) -> Any:
        """The input of /v1/responses may have other items, too."""
        if isinstance(item, dict) and isinstance(kind := item.get("type"), str) and kind != "message":
            raise ValueError(
                f"an item of type {kind[:MAX_NAME]!r}: messages are all that this server reads, and tools are in "
                "/v1/chat/completions"
            )
        return item

    @model_validator(mode="after")
    def _says_something(self) -> "Message":
        """An answer without text, or with calls only, is sent back as it came."""
        if self.role != "assistant" and "content" not in self.model_fields_set:
            raise ValueError(f"a message of role {self.role!r} needs content")
        return self

    def as_template_message(self) -> dict[str, Any]:
        """The message as the model's chat template takes it. OpenAI renamed `system` to `developer`; templates know
        the old name."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        told: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": text}
        told |= self.model_dump(include={"name", "tool_call_id"}, exclude_defaults=True)
        if self.tool_calls:
            told["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        return told


def one_constraint(value: Any, make: ValidatorFunctionWrapHandler) -> StructuredOutputsParams | None:
    """`structured_outputs`, whose own error pydantic should give a place. An object without fields asks for nothing."""
    try:
        return make(value or None)
    except InvalidSamplingParamsError as error:
        raise ValueError(str(error)) from None


def prompt_tag(prompt: Any) -> Tag | None:
    """The form of a prompt. A list may hold three things: its first item says which."""
    if not isinstance(prompt, list) or not prompt:
        return tag_of_type(prompt)
    return {int: LIST, str: TEXTS, list: LISTS}.get(type(prompt[0]))


CompletionPrompt = Annotated[
    Annotated[str, TEXT] | Annotated[List[int], LIST] | Annotated[List[str], TEXTS] | Annotated[List[List[int]], LISTS],
    one_of("a string, token ids (a list of integers), or a list of strings or of lists of token ids", prompt_tag),
]


class GenerationBody(StrictJson):
    """The parameters that all these endpoints share."""

    unsupported = PARAMETERS
    id_prefix: ClassVar[str]
    """What the answer's id begins with."""
    is_chat: ClassVar[bool]
    prompt_name: ClassVar[str]
    """The parameter that is the prompt."""
    default_tokens: ClassVar[float]
    """Output tokens of a request that names no limit, if the window has room for them."""
    limit_names: ClassVar[tuple[str, ...]] = ("max_tokens",)
    """Parameters that say how many tokens may come at most. The first that was sent counts."""

    model: str | None = Field(None, description="None, as in vLLM: the model that is served")
    stream: bool = False
    stream_options: StreamOptions = Field(default_factory=StreamOptions)
    n: int = Field(1, ge=1, le=64)
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int = Field(0, ge=0, description="vLLM's")
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: dict[TokenId, Bias] = Field(default_factory=dict, max_length=MAX_BIASES)
    seed: Seed | None = None
    stop: Stop = Field(default_factory=list)
    user: str | None = Field(None, description="names the end user: the tenant, with scheduling_order=fair")
    safety_identifier: str | None = Field(None, description="OpenAI's new name for user")
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_SALT, description="vLLM's: who shares prefixes")
    prompt_cache_key: str | None = Field(None, description="changes nothing: any prefix that is cached is found")
    response_format: ResponseFormat | None = None
    # As in vLLM:
    structured_outputs: Annotated[StructuredOutputsParams | None, WrapValidator(one_constraint)] = None
    guided_json: Schema | None = Field(None, description="vLLM's older names for structured_outputs")
    guided_regex: str | None = None
    guided_choice: List[str] | None = None
    guided_grammar: str | None = None
    top_k: int = Field(0, ge=-1, description="0 and -1 = all")
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0, le=100)
    stop_token_ids: List[int] = Field(default_factory=list, max_length=64)
    ignore_eos: bool = False
    priority: int = Field(0, ge=-(2**31), lt=2**31, description="lower is earlier, with scheduling_order=priority")

    @model_validator(mode="after")
    def _usage_in_a_stream(self) -> "GenerationBody":
        if self.stream_options.include_usage and not self.stream:
            raise ValueError("stream_options.include_usage is only for stream: true; a whole answer has its usage")
        if self.stream_options.continuous_usage_stats and not self.stream_options.include_usage:
            raise ValueError("stream_options.continuous_usage_stats needs include_usage: true")
        return self

    @property
    def tenant(self) -> str:
        """Whose request it is."""
        return self.user or self.safety_identifier or ""

    @property
    def token_limit(self) -> int | None:
        """What the client asked for at most; None = it did not say."""
        return getattr(self, self.limit_name)

    @property
    def limit_name(self) -> str:
        """The parameter that said so."""
        return next((name for name in self.limit_names if getattr(self, name) is not None), "max_tokens")

    @property
    def constrained_by(self) -> str | None:
        """The field that says what the answer must follow, for error messages."""
        return "tools" if self.offered_tools else next(iter(self.constraints()), None)

    @property
    def offered_tools(self) -> list[Tool]:
        """What the answer may call. A grammar for them is made apart: tool_grammars.py."""
        return []

    @property
    def template_variables(self) -> dict[str, Any]:
        """What the chat template is told besides messages and tools."""
        return {}

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens to report at each place; None = no log-probabilities."""
        return None

    def prompts(self) -> list[Prompt]:
        raise NotImplementedError

    def sampling(self, max_tokens: int) -> SamplingParams:
        """The parameters as the engine takes them.

        Raises:
            InvalidSamplingParamsError: the engine does not take these values.
        """
        shared = self.model_dump(include=SamplingParams.model_fields.keys() & GenerationBody.model_fields.keys())
        own: dict[str, Any] = {"max_tokens": max_tokens, "top_k": max(self.top_k, 0), "logprobs": self.num_logprobs}
        own["min_tokens"] = min(self.min_tokens, max_tokens)  # which may be less than was asked for, under load
        wanted = list(self.constraints().values())
        if len(wanted) + bool(self.offered_tools) > 1:
            raise ApiError(400, "an answer follows one format, grammar or set of tools: send one", "invalid_value")
        return SamplingParams(**{**shared, **own, "structured_outputs": wanted[0] if wanted else None})

    def constraints(self) -> dict[str, StructuredOutputsParams]:
        """What the answer must follow, by the field that says so; but for tools."""
        if self.guided_choice == []:
            raise ApiError(400, "guided_choice: send at least one string", "invalid_value", "guided_choice")
        asked = {
            "response_format": self.response_format.as_params() if self.response_format else None,
            "structured_outputs": self.structured_outputs,
        }
        kinds = ("json", "regex", "choice", "grammar")
        guided = {kind: value for kind in kinds if (value := getattr(self, f"guided_{kind}")) is not None}
        if guided:
            asked[f"guided_{next(iter(guided))}"] = StructuredOutputsParams(**guided)
        return {field: params for field, params in asked.items() if params is not None}


class CompletionBody(GenerationBody):
    """/v1/completions."""

    id_prefix: ClassVar[str] = "cmpl-"
    prompt_name: ClassVar[str] = "prompt"
    is_chat: ClassVar[bool] = False
    default_tokens: ClassVar[float] = COMPLETION_TOKENS

    prompt: CompletionPrompt
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

    id_prefix: ClassVar[str] = "chatcmpl-"
    prompt_name: ClassVar[str] = "messages"
    is_chat: ClassVar[bool] = True
    default_tokens: ClassVar[float] = math.inf
    limit_names = ("max_completion_tokens", "max_tokens")

    messages: List[Message] = Field(min_length=1)
    tools: List[Tool] = Field(default_factory=list, max_length=128)
    tool_choice: Annotated[
        Annotated[Literal["none", "auto", "required"], TEXT] | Annotated[NamedTool, OBJECT],
        one_of("'none', 'auto', 'required', or a function's name: {'type': 'function', 'function': {'name': ...}}"),
    ] = "auto"
    parallel_tool_calls: bool = True
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, max_length=MAX_TEMPLATE_VARIABLES)

    @model_validator(mode="after")
    def _consistent(self) -> "ChatBody":
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ: send one (max_tokens is the old name)")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.tool_choice not in ("none", "auto") and not self.tools:
            raise ValueError("tool_choice needs tools: send them, or leave it out")
        return self

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def prompts(self) -> list[Prompt]:
        return [[message.as_template_message() for message in self.messages]]

    @property
    def template_variables(self) -> dict[str, Any]:
        return self.chat_template_kwargs

    @property
    def offered_tools(self) -> list[Tool]:
        return [] if self.tool_choice == "none" else self.tools


class ResponsesBody(GenerationBody):
    """/v1/responses: one answer of plain text."""

    id_prefix: ClassVar[str] = "resp_"
    prompt_name: ClassVar[str] = "input"
    is_chat: ClassVar[bool] = True
    default_tokens: ClassVar[float] = math.inf
    limit_names = ("max_output_tokens", "max_tokens")

    input: Annotated[Annotated[str, TEXT] | Annotated[List[Message], LIST], one_of("a string, or a list of messages")]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    text: ResponsesText = Field(default_factory=ResponsesText)
    n: int = Field(1, ge=1, le=1)

    @model_validator(mode="after")
    def _usage_comes_at_the_end(self) -> "ResponsesBody":
        if self.stream_options.continuous_usage_stats:
            raise ValueError("stream_options.continuous_usage_stats: the last event of a response has its usage")
        return self

    def prompts(self) -> list[Prompt]:
        told = [Message(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        if self.instructions is not None:
            told = [Message(role="system", content=self.instructions), *told]
        return [[message.as_template_message() for message in told]]

    def constraints(self) -> dict[str, StructuredOutputsParams]:
        asked = self.text.format.as_params() if self.text.format else None
        return super().constraints() | ({"text.format": asked} if asked else {})


class TokenizeBody(StrictJson):
    """/tokenize, as in vLLM: of a prompt, or of messages put through the chat template."""

    unsupported = PARAMETERS
    model: str | None = None
    prompt: str | None = None
    messages: List[Message] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, max_length=MAX_TEMPLATE_VARIABLES)
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_two(self) -> "TokenizeBody":
        if (self.prompt is None) == (not self.messages):
            raise ValueError("send a prompt, or messages")
        if self.chat_template_kwargs and not self.messages:
            raise ValueError("chat_template_kwargs are for messages: a prompt goes through no template")
        return self


class DetokenizeBody(StrictJson):
    """/detokenize, as in vLLM."""

    unsupported = PARAMETERS
    model: str | None = None
    tokens: List[int]


def parse(body: bytes, kind: type[Body]) -> Body:
    """A request body, checked.

    Raises:
        ApiError: 400: not JSON, an unknown or unsupported parameter, a value of the wrong type or out of range.
    """
    try:
        fields = orjson.loads(body.removeprefix(BOM_UTF8))  # the body may be a file that someone wrote
    except orjson.JSONDecodeError as error:
        hint = " (a text was cut within a character: send all of it)" if "surrogate" in str(error) else ""
        raise ApiError(400, f"the body is not valid JSON: {error}{hint}", "invalid_json") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "the body must be a JSON object", "invalid_json")
    try:
        return kind.model_validate(fields)
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", "invalid_value") from None
    except ValidationError as error:
        raise refusal(kind, error) from None
