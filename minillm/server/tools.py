"""Tools: functions that the model may ask its client to call, in the format of Hermes and Qwen.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

The model's own chat template tells it so. A grammar holds it to that: whatever it writes after the opening tag and a
newline is a call of one of the tools, with arguments that follow the tool's schema. The reader takes exactly this for a
call, and everything else for text.
"""

import json
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from minillm.frontend.grammar_limits import prepare_schema
from minillm.frontend.structured_outputs import json_rule
from minillm.server.errors import ApiError
from minillm.server.strict_json import StrictJson

OPEN, CLOSE = "<tool_call>", "</tool_call>"
HEAD = re.compile(re.escape(OPEN) + r'\n\{"name": "([a-zA-Z0-9_.-]{1,64})", "arguments": (?=\{)')
TAIL = "}\n" + CLOSE
LONGEST_HEAD = 100
"""Characters from the newline to the arguments: the name has at most 64."""
NO_TOOLS = (
    f"this model's chat template has no tools (as {OPEN}, which Qwen's and Hermes' have): describe them in a message, "
    "and have the answer follow a response_format"
)
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Function(StrictJson):
    """What the model is told about a function. With `strict`, a keyword of `parameters` that cannot be followed is an
    error; otherwise it is passed over, and a schema that cannot be read at all means any object."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object"})
    strict: bool | None = None


class Tool(StrictJson):
    """OpenAI's `tools[]`."""

    type: Literal["function"]
    function: Function


class FunctionName(StrictJson):
    """The function that must be called."""

    name: Name


class NamedTool(StrictJson):
    """OpenAI's `tool_choice` of one function."""

    type: Literal["function"]
    function: FunctionName


class Looseness(IntEnum):
    """How closely a call's arguments are held to the tool's `parameters`."""

    NONE = 0
    """Held to all that can be followed."""
    NO_PATTERNS = 1
    """Held to all but regular expressions, whose dialects are many."""
    ANY_OBJECT = 2


class CalledFunction(BaseModel):
    """`function` of a call in a chat's history. What it is besides goes to the chat template as it is."""

    model_config = ConfigDict(extra="allow", strict=True)

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict, validate_default=True)

    @field_validator("arguments", mode="before")
    @classmethod
    def _read(cls, arguments: Any) -> Any:
        """Clients send a call without arguments back as "", null, or without the field."""
        if isinstance(arguments, str):
            try:
                arguments = JSON.decode(arguments) if arguments.strip() else None
            except (ValueError, RecursionError) as error:
                raise ValueError(f"arguments are a JSON object, as a string: {error}") from None
        if arguments is None:
            return {}
        if not isinstance(arguments, dict):
            raise ValueError(f"arguments are a JSON object, not {type(arguments).__name__}")
        return arguments


class ToolCall(BaseModel):
    """One of `tool_calls` in a chat's history."""

    model_config = ConfigDict(extra="allow", strict=True)

    function: CalledFunction


def callable_tools(tools: Sequence[Tool], choice: str | NamedTool) -> list[tuple[int, Function]]:
    """What may be called, each with its number among the tools.

    Raises:
        ApiError: 400: the tool that is chosen is not there.
    """
    wanted = [
        (number, tool.function)
        for number, tool in enumerate(tools)
        if isinstance(choice, str) or choice.function.name == tool.function.name
    ]
    if not wanted:
        raise ApiError(400, "the function of tool_choice is not among the tools", "invalid_value", "tool_choice")
    return wanted


def tool_grammar(
    tools: Sequence[Tool], choice: str | NamedTool, parallel: bool, looseness: Mapping[int, Looseness] = {}
) -> str:
    """Lark's notation, as llguidance reads it: text and calls, or calls alone where one is required.

    Each tool's parameters are a schema of their own, so that what they refer to moves with them. Keywords that
    llguidance doesn't have (uniqueItems, look-ahead in a pattern) are passed over unless the tool is `strict`, and the
    others hold. The tags are special tokens where the tokenizer has them, and spelled out elsewhere (resolve_tokens).

    Args:
        looseness: by the number of a tool whose parameters are known to be refused as they are: how much of them to
            ask for (tool_grammars.py).
    Raises:
        ApiError: 400: the tool that is chosen is not there, or its parameters are too large or describe no object.
    """
    wanted = callable_tools(tools, choice)
    literals = [json.dumps(f'{{"name": "{one.name}", "arguments": ') for _, one in wanted]
    bodies = " | ".join(
        f"{literal} {arguments_rule(number, function, looseness.get(number, Looseness.NONE))}"
        for literal, (number, function) in zip(literals, wanted)
    )
    if choice != "auto":
        start, head = r'call ("\n" call)*' if parallel and choice == "required" else "call", rf'{OPEN} "\n"'
    else:  # a special tag ends the text before it; one that is spelled out reads the same
        start = "call* prose TEXT" if parallel else "call | prose TEXT"
        head = rf'prose (spelled | TEXT {OPEN} "\n")'
    rules = [
        f"start: {start}",
        rf'call: {head} body "}}\n" {CLOSE}',
        f"body: {bodies}",
        "prose: (TEXT (<think> | </think>))*",
        rf'spelled[lazy]: /(.|\n)*/ "{OPEN}\n"',
        rf"TEXT: /(.|\n)*/ & ~/(.|\n)*{OPEN}\n(.|\n)*/",
    ]
    return "\n".join(rules if choice == "auto" else rules[:3])


def arguments_rule(number: int, function: Function, looseness: Looseness) -> str:
    """A part of a grammar: the arguments of tool `number`. Raises ApiError, 400: its parameters are too large, or
    describe no object."""
    parameters = {"type": "object", **function.parameters}
    field = parameters_field(number)
    kinds = parameters["type"]
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise ApiError(400, f"{field}: arguments are an object: have type be object", "invalid_value", field)
    if looseness is Looseness.ANY_OBJECT:
        parameters = {}
    try:
        if looseness is Looseness.NO_PATTERNS:
            parameters = prepare_schema(parameters, relaxed=True, has_patterns=False)
        return json_rule({**parameters, "type": "object", "x-guidance": {}}, relaxed=not function.strict)
    except (ValueError, TypeError, RecursionError) as error:
        raise ApiError(400, f"{field}: {error}", "invalid_value", field) from None


def parameters_field(number: int) -> str:
    """The place of a tool's schema in the request."""
    return f"tools.{number}.function.parameters"


class ToolCallReader:
    """Reads one answer, in pieces of any size: what is text in it, and what are calls. It takes any text.

    Args:
        offered: names of the tools; a call of another is text.
    """

    def __init__(self, offered: Collection[str]) -> None:
        self._offered = offered
        self._held = ""
        """What may belong to a call."""
        self._looked = 0
        """Characters of it that no closing tag begins in."""
        self.num_calls = 0

    def read(self, piece: str, *, is_last: bool) -> tuple[str, list[dict[str, Any]]]:
        """The text that is certain to be no call, and the calls that are whole, in OpenAI's shape. A call that the
        answer breaks off in is text."""
        self._held += piece
        text, calls = "", list[dict[str, Any]]()
        while (start := self._held.find(OPEN + "\n")) >= 0:
            call, may_come = self._call_at(start)
            if call is not None:
                end = self._held.index(TAIL, start + len(OPEN)) + len(TAIL)
                text, calls, self.num_calls = text + self._held[:start], [*calls, call], self.num_calls + 1
            elif may_come and not is_last:
                break
            else:
                end = start + len(OPEN) + 1
                text += self._held[:end]
            self._held, self._looked = self._held[end:], 0
        kept = len(self._held) - start if start >= 0 else 0 if is_last else self._opening_at_end()
        released = len(self._held) - kept
        text, self._held = text + self._held[:released], self._held[released:]
        self._looked = max(0, self._looked - released)
        return (text if text.strip() or not self.num_calls else ""), calls

    def _opening_at_end(self) -> int:
        """Characters at the end that may begin a call."""
        opening = OPEN + "\n"
        return next((n for n in range(len(opening) - 1, 0, -1) if self._held.endswith(opening[:n])), 0)

    def _call_at(self, start: int) -> tuple[dict[str, Any] | None, bool]:
        """The call that begins there; without one, whether it may become one."""
        head = HEAD.match(self._held, start)
        if head is None:
            begun, wanted = self._held[start + len(OPEN) + 1 :], '{"name": "'
            return None, len(begun) < LONGEST_HEAD and begun[: len(wanted)] == wanted[: len(begun)]
        if head[1] not in self._offered:
            return None, False
        end = self._held.find(TAIL, max(head.end(), self._looked))
        if end < 0:
            self._looked = len(self._held) - len(TAIL) + 1
            return None, True
        arguments = self._held[head.end() : end]
        if not _is_object(arguments):
            return None, False
        function = {"name": head[1], "arguments": arguments}
        return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}, False


def _is_object(text: str) -> bool:
    """Whether it is one JSON object, with numbers of any size, and nothing else."""
    try:
        return isinstance(JSON.decode(text), dict)
    except (ValueError, RecursionError):
        return False


def _whole_number(digits: str) -> int | str:
    """The number as Python reads it; with more digits than it reads, as they stand there."""
    return int(digits) if len(digits) <= MAX_DIGITS else digits


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


MAX_DIGITS = 4300
"""Digits of a whole number. Python's own limit: more take quadratic time."""
JSON = json.JSONDecoder(parse_int=_whole_number, parse_constant=_no_constant)
"""Reads the arguments of calls: as the model writes them, and as a client sends them back."""
