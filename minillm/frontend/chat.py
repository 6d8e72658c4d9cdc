"""`minillm chat`: a conversation in a terminal. Each answer streams, then says how long each phase took."""

import shlex
from typing import TextIO

from rich.text import Text

from minillm.core.errors import MinillmError, RequestError
from minillm.core.params import SamplingParams
from minillm.frontend.engine_thread import EngineThread
from minillm.frontend.outputs import RequestOutput
from minillm.frontend.phases_shown import phase_bar, phase_line, phase_table, show
from minillm.frontend.structured_outputs import parse_sampling
from minillm.frontend.terminal import Lines, safe_text
from minillm.policies.config import parse_fields

HELP = """\
/phases                where the last answer's time went
/set FIELD=VALUE ...   temperature=0 max_tokens=64 seed=7 stop=...; alone: show
/reset                 forget the conversation
/help, Ctrl-D (leave); Ctrl-C ends an answer"""
COMMANDS = ("/phases", "/set", "/reset", "/help")


class Chat:
    """One conversation.

    Args:
        system: the system message.
        screen: gets everything that is shown.
    """

    def __init__(self, engine: EngineThread, params: SamplingParams, system: str | None, screen: TextIO) -> None:
        self._engine, self.params, self._screen = engine, params, screen
        self._messages = self._opening = [{"role": "system", "content": system}] if system else []
        self.turns: list[tuple[str, RequestOutput]] = []
        """What the user said, and the answer."""

    def talk(self) -> None:
        """Read and answer until the input ends."""
        lines = Lines("chat", [*COMMANDS, *(f"{name}=" for name in SamplingParams.model_fields)], self._screen)
        self._show("/help tells what can be typed; Ctrl-C ends an answer, Ctrl-D leaves.\n")
        while (line := lines.read("> ", ignored=KeyboardInterrupt)) is not None:
            if line.startswith("/"):
                try:
                    show(self._obey(line), self._screen)
                except (MinillmError, ValueError) as error:
                    show(str(error), self._screen)
            elif line.strip():
                self._ask(line.strip())

    def _obey(self, line: str) -> str | Text:
        """Do what a command says; what to show then."""
        command, *rest = shlex.split(line)
        match command:
            case "/help":
                return HELP
            case "/reset":
                self._messages = self._opening
                return "forgotten"
            case "/phases":
                return phase_table(self.turns[-1][1].timeline) if self.turns else "no answer yet"
            case "/set":
                changed = {**self.params.model_dump(exclude_unset=True), **parse_fields(rest, "/set")}
                self.params = parse_sampling({**changed, "n": 1})
                fields = self.params.model_dump(exclude_unset=True)
                return ", ".join(f"{name}={value}" for name, value in fields.items())
        return f"no command {command}\n{HELP}"

    def _ask(self, line: str) -> None:
        asked = [*self._messages, {"role": "user", "content": line}]
        try:
            output = self._stream(asked)
        except RequestError as error:  # the conversation has outgrown the context window, for one
            self._show(f"{error}\n/reset starts over.\n")
            return
        self.turns.append((line, output))
        self._show("\n")
        if self._screen.isatty():
            show(phase_bar(output.timeline), self._screen)
        show(phase_line(output.timeline), self._screen)
        if failure := output.completions[0].error:
            self._show(f"this answer is not complete, and the conversation goes on without it: {failure}\n")
        else:
            self._messages = [*asked, {"role": "assistant", "content": output.text}]

    def _stream(self, messages: list[dict[str, str]]) -> RequestOutput:
        """Show text as it comes, and return the finished output. Ctrl-C aborts this answer only."""
        stream = self._engine.submit(messages, self.params)
        shown = 0
        try:
            for output in stream:
                self._show(safe_text(output.text[shown:], self._screen))
                shown = len(output.text)
            return output
        except KeyboardInterrupt:
            stream.abort()
            return stream.result()

    def _show(self, text: str) -> None:
        print(text, end="", file=self._screen, flush=True)
