"""A session that the browser plays, in a notebook: it shows a state and asks for actions (kernel_port.js)."""

from typing import Any, Protocol

import anywidget
import traitlets

from course.lab.display import LivePanel, words_of
from minillm.core.errors import MinillmError


class PortedSession(Protocol):
    """What is played: states and actions, JSON."""

    def state(self) -> dict[str, Any]: ...
    def act(self, action: object) -> dict[str, Any]: ...


class PortView(anywidget.AnyWidget):
    """The state that the browser shows; its actions come as messages."""

    state = traitlets.Dict().tag(sync=True)


class PortPanel(LivePanel):
    """Without a browser it works the same way: `act({"do": "look"})`.

    Args:
        refusal: what the session raises for an action that can't be done.
    """

    widget: PortView

    def __init__(self, session: PortedSession, widget: PortView, refusal: type[MinillmError]) -> None:
        self._played = session
        self._refusal = refusal
        self.widget = widget
        self.widget.on_msg(self._hear)

    def act(self, action: object) -> None:
        """One action, as the session takes it; the view shows what came of it.

        Raises:
            MinillmError: of the session's kind: it comes out of turn, or names what doesn't exist.
        """
        self.widget.state = self._played.act(action)

    def _hear(self, _: object, message: dict[str, Any], __: object) -> None:
        """What comes out of turn is told where it was pressed, not raised."""
        refused = ""
        try:
            self.act(message.get("action"))
        except self._refusal as error:
            refused = str(error)
        except Exception as error:
            refused = f"that failed: {words_of(error)}"
            raise
        finally:
            self.widget.send({"id": message.get("id"), "refused": refused})
