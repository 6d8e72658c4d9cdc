"""A server elsewhere, with a tap at this machine's end of the way to it: what lesson 10 looks at in LabServer's place.

The server's own stamps of each token stay with it. So its answers go through a proxy here, and a token has left the
server when it's read there. Whatever spoils a stream comes after the tap.
"""

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from course.lab.http_client import EVENT_END, Heard
from course.lab.lab import Lab
from course.lab.proxy import Spoiling, make_proxy
from course.lab.remote import SETTLE_S
from course.lab.server import SCRAPE_S, LabServer, ServerEnd, in_background, means
from course.lab.server_lab import ServerLab, ServerLabError
from course.loadgen.server_metrics import Scrape, read_metrics


class ServerTap:
    """One server of a ServerLab, and a tap."""

    is_open = True

    def __init__(self, lab: ServerLab) -> None:
        self.lab = lab
        self.asked = {"model": lab.endpoint.model}
        """Further fields of every request's body."""
        self._pieces: list[tuple[float, bytes]] = []

    @property
    def url(self) -> str:
        return self.lab.endpoint.url

    @property
    def about(self) -> str:
        """Where it is, and what is read as its end of the wire."""
        return f"asking {self.url}. It keeps its own stamps: here a token leaves when its bytes reach this machine"

    def fresh(self, prompt: str) -> str:
        """The prompt, so that nothing of it is cached: behind a line of its own."""
        return self.lab.new_line() + prompt

    @contextmanager
    def way(self, **spoiling: Any) -> Iterator[int]:
        """The port to ask at: the tap, then whatever spoils the stream."""
        self._pieces = []
        proxy = make_proxy(self.url, Spoiling(**spoiling), self._note)
        with in_background(proxy) as running:
            yield running.port

    def _note(self, piece: bytes) -> None:
        self._pieces.append((time.perf_counter(), piece))

    def end_of(self, heard: Heard, before: Scrape) -> ServerEnd:
        """The latest answer as it came by the tap. What its first token took is divided as /metrics say.

        Args:
            before: the server's /metrics before it was asked.
        """
        time.sleep(SETTLE_S)  # it counts a request when it's over
        told, left = means(self.metrics().since(before)), tuple(self._tokens())
        if not left:
            raise ServerLabError(f"{self.url} sent no tokens. A server that wants a key gets none from this cell.")
        scheduled = min(heard.sent + told.get("queue", 0.0), left[0])
        prefilled = min(scheduled + told.get("prefill", left[0] - scheduled), left[0])
        return ServerEnd(left, (heard.sent, scheduled, prefilled, left[0], left[-1], self._pieces[-1][0]), told)

    def _tokens(self) -> Iterator[float]:
        """When the last byte of each event was read; one event is one token here."""
        pending = b""
        for moment, piece in self._pieces:
            *events, pending = (pending + piece).split(EVENT_END)
            for event in events:
                if event.startswith(b"data: {"):
                    yield moment

    def metrics(self) -> Scrape:
        """What a dashboard would read; nothing where the server has none."""
        try:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=SCRAPE_S) as answer:
                return read_metrics(answer.read().decode()) or Scrape("unknown")
        except urllib.error.HTTPError:
            return Scrape("unknown")

    def close(self) -> None:
        """The server goes on."""

    def ensure_open(self) -> None:
        """It isn't ours to open."""


def open_server(lab: Lab | ServerLab, instead_of: Any = None) -> LabServer | ServerTap:
    """The server of a notebook: the lab's own in this process, or the one that the lab is about.

    Args:
        instead_of: closed before, if there is one: a cell that is run again leaves none behind.
    """
    if isinstance(lab, ServerLab):
        if instead_of is not None:
            instead_of.close()
        return ServerTap(lab)
    return LabServer(lab, instead_of=instead_of if isinstance(instead_of, LabServer) else None)
