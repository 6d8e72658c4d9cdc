"""Tools: functions that the model may ask its client to call, in the format of Hermes and Qwen.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

The model's own chat template tells it so. A grammar holds it to that: whatever it writes after the opening tag is a
call of one of the tools, with arguments that follow the tool's schema.
"""

import json
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from minillm.frontend.structured_outputs import JSON_LAYOUT
from minillm.server.errors import ApiError
from minillm.server.strict_json import StrictJson

OPEN, CLOSE = "<tool_call>", "</tool_call>"
JSON = json.JSONDecoder()
NO_TOOLS = (
    f"this model's chat template has no tools (as {OPEN}, which Qwen's and Hermes' have): describe them in a message, "
    "and have the answer follow a response_format"
)
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Function(StrictJson):
    """What the model is told about a function. Calls follow `parameters`, with or without `strict`."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object"})
    strict: bool | None = None


class Tool(StrictJson):
    """OpenAI's `tools[]`."""

    type: Literal["function"]
    function: Function


class FunctionName(StrictJson):
    """Of the function that must be called."""

    name: Name


class NamedTool(StrictJson):
    """OpenAI's `tool_choice` of one function."""

    type: Literal["function"]
    function: FunctionName


def template_tools(tokenizer: Any, tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """As chat templates take them; None if there are none.

    Raises:
        ApiError: 400: this model's template does not.
    """
    described = [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in tools]
    template = getattr(tokenizer, "chat_template", None) and tokenizer.get_chat_template(tools=described)
    if tools and not (template and OPEN in template):
        raise ApiError(400, NO_TOOLS, "unsupported_parameter", "tools")
    return described or None


def tool_grammar(tools: Sequence[Tool], choice: str | NamedTool, parallel: bool) -> str:
    """Lark's notation, as llguidance reads it: text and calls, or calls alone where one is required.

    Raises:
        ApiError: 400: the tool that is chosen is not there.
    """
    wanted = [tool.function for tool in tools if isinstance(choice, str) or choice.function.name == tool.function.name]
    if not wanted:
        raise ApiError(400, "the function of tool_choice is not among the tools", "invalid_value", "tool_choice")
    calls = [{"properties": {"name": {"const": one.name}, "arguments": one.parameters}} for one in wanted]
    whole = {"type": "object", "required": ["name", "arguments"], "additionalProperties": False}
    schema = {"anyOf": [{**whole, **call} for call in calls], "x-guidance": JSON_LAYOUT}
    if choice == "auto":
        start, head = "call* TEXT" if parallel else "call | TEXT", r"head[lazy]: /(.|\n)*/ "
    else:
        start, head = r'call ("\n" call)*' if parallel and choice == "required" else "call", "head: "
    rules = ["%llguidance {}", f"start: {start}", rf'call: head json "\n{CLOSE}"', rf'{head}"{OPEN}\n"']
    return "\n".join([*rules, r"TEXT: /(.|\n)*/", f"json: %json {json.dumps(schema)}"])


class ToolCallReader:
    """Reads one answer, in pieces of any size: what is text in it, and what are calls."""

    def __init__(self) -> None:
        self._held = ""
        """What may belong to a call."""
        self.num_calls = 0

    def read(self, piece: str, *, is_last: bool) -> tuple[str, list[dict[str, Any]]]:
        """The text that is certain to be no call, and the calls that are whole, in OpenAI's shape. A call that the
        answer breaks off in is text."""
        self._held += piece
        text, calls = "", []
        while (start := self._held.find(OPEN)) >= 0 and CLOSE in self._held[start:]:
            try:
                call, end = JSON.raw_decode(self._held, start + len(OPEN) + 1)
            except json.JSONDecodeError:
                break  # that was a tag inside of a string
            if not self._held.startswith("\n" + CLOSE, end):
                break  # and this one is not whole yet
            text += self._held[:start]
            calls.append(self._shaped(call))
            self._held = self._held[end + 1 + len(CLOSE) :]
        begun = len(self._held) if is_last else start if start >= 0 else len(self._held) - self._opening_at_end()
        text, self._held = text + self._held[:begun], self._held[begun:]
        return (text if text.strip() or not self.num_calls else ""), calls

    def _opening_at_end(self) -> int:
        """Characters at the end that may begin a tag."""
        return next((n for n in range(len(OPEN) - 1, 0, -1) if self._held.endswith(OPEN[:n])), 0)

    def _shaped(self, call: dict[str, Any]) -> dict[str, Any]:
        self.num_calls += 1
        function = {"name": call["name"], "arguments": orjson.dumps(call["arguments"]).decode()}
        return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
