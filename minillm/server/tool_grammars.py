"""Grammars of tools, of which the schemas come from everywhere: MCP servers send what no grammar can express.

    the schema as it is  ->  without its regular expressions  ->  any object

A tool that is not `strict` is held to the first of these that compiles. What that is shows in a child process only
(frontend/grammar_trials.py), so it is tried, tool by tool, where the grammar of them all was refused, and remembered.
"""

import asyncio
import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Sequence

from minillm.frontend.engine_thread import EngineThread
from minillm.frontend.errors import GrammarTrialEndedError, InvalidGrammarError
from minillm.frontend.structured_outputs import StructuredOutputsParams, readable
from minillm.server.errors import ApiError
from minillm.server.tools import (
    Function,
    Looseness,
    NamedTool,
    Tool,
    arguments_rule,
    callable_tools,
    parameters_field,
    tool_grammar,
)

logger = logging.getLogger(__name__)

REMEMBERED = 1000
"""Schemas that were refused as they are, those used last."""
SAID_BEFORE = "structured outputs: grammar: "
"""The beginning of a refusal, which is about what the client didn't write."""


class ToolGrammars:
    """Makes grammars of tools that compile.

    Args:
        thread: has the engine that compiles them.
    """

    def __init__(self, thread: EngineThread) -> None:
        self._thread = thread
        self._looseness: OrderedDict[bytes, Looseness] = OrderedDict()
        """Looseness by digest of a schema, where it isn't NONE."""

    async def make(self, tools: Sequence[Tool], choice: str | NamedTool, parallel: bool) -> StructuredOutputsParams:
        """What an answer with these tools must follow. It has been compiled, or what is wrong with it lies in no single
        tool.

        Raises:
            ApiError: 400: a tool's parameters are refused; it names the tool.
            GrammarTrialEndedError: trying them ended a process: nothing like it is tried again.
            QueueFullError: too many grammars wait.
            EngineDeadError: the engine has stopped.
        """
        wanted = callable_tools(tools, choice)

        async def written() -> StructuredOutputsParams:
            looseness = {number: self._recall(function) for number, function in wanted}
            text = await asyncio.to_thread(tool_grammar, tools, choice, parallel, looseness)
            return StructuredOutputsParams(grammar=text)

        asked = await written()
        if await self._refusal(asked) is None:
            return asked
        for number, function in wanted:
            await self._loosen(number, function)
        return await written()

    async def _loosen(self, number: int, function: Function) -> None:
        """Find out, and remember, how closely a tool's arguments can be held to its schema."""
        field = parameters_field(number)
        for looseness in Looseness:
            if looseness < self._recall(function):
                continue
            rule = await asyncio.to_thread(arguments_rule, number, function, looseness)
            try:
                why = await self._refusal(StructuredOutputsParams(grammar=f"start: {rule}"))
            except GrammarTrialEndedError as error:
                raise ApiError(400, f"{field}: {_brief(error)}", "invalid_value", field) from None
            if why is None:
                if looseness > Looseness.NONE:
                    logger.info("calls of %s are held to its schema less closely: %s", function.name, looseness.name)
                    self._remember(function, looseness)
                return
            if function.strict or looseness is Looseness.ANY_OBJECT:
                raise ApiError(400, f"{field}: {why}", "invalid_value", field)

    async def _refusal(self, params: StructuredOutputsParams) -> str | None:
        """Why a grammar doesn't compile; None: it does."""
        try:
            await asyncio.wrap_future(self._thread.grammars.start(params))
        except GrammarTrialEndedError:
            raise
        except InvalidGrammarError as error:
            self._thread.check_alive()
            return _brief(error)
        return None

    def _recall(self, function: Function) -> Looseness:
        key = _digest(function)
        if function.strict or key not in self._looseness:
            return Looseness.NONE
        self._looseness.move_to_end(key)
        return self._looseness[key]

    def _remember(self, function: Function, looseness: Looseness) -> None:
        self._looseness[_digest(function)] = looseness
        if len(self._looseness) > REMEMBERED:
            self._looseness.popitem(last=False)


def _brief(error: InvalidGrammarError) -> str:
    """Without what quotes our own grammar."""
    return readable(str(error).removeprefix(SAID_BEFORE), "json")


def _digest(function: Function) -> bytes:
    return hashlib.sha256(json.dumps(function.parameters).encode()).digest()
