"""What the model's own chat template is told besides the messages: the tools, and variables that it reads."""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from minillm.server.errors import ApiError
from minillm.server.tools import NO_TOOLS, OPEN, Tool


def template_variables(tokenizer: Any, tools: Sequence[Tool], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Them all, by name.

    Args:
        chosen: the client's own (`chat_template_kwargs`), such as `enable_thinking` of Qwen3's template.
    Raises:
        ApiError: 400: this model's template has no tools, or doesn't read one of these variables.
    """
    described = [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in tools]
    has_template = getattr(tokenizer, "chat_template", None) is not None
    template = tokenizer.get_chat_template(tools=described or None) if has_template else ""
    if tools and OPEN not in template:
        raise ApiError(400, NO_TOOLS, "unsupported_parameter", "tools")
    for name in chosen:
        _check_variable(name, template, tokenizer)
    return {**chosen, "tools": described or None}


def _check_variable(name: str, template: str, tokenizer: Any) -> None:
    """Raise ApiError, 400: it would have no effect, or take the place of what the server itself tells the template."""
    where = f"chat_template_kwargs.{name[:100]}"
    if not (name.isidentifier() and re.search(rf"\b{name}\b", template)):
        message = f"this model's chat template doesn't read {name[:100]!r}: leave it out"
        raise ApiError(400, message, "unsupported_parameter", where)
    arguments = inspect.signature(tokenizer.apply_chat_template).parameters
    if name in ("messages", "self", *arguments, *tokenizer.special_tokens_map):
        raise ApiError(400, f"{name!r} of the chat template is the server's own", "unsupported_parameter", where)
