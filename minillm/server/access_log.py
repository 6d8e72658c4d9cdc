"""One JSON line for each request: who, how much, how long, how it ended. Never what was said."""

import atexit
import logging
import queue
import sys
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener

import orjson

from minillm.server.calls import Call, TokenCounts

logger = logging.getLogger("minillm.access")

MAX_LINES = 10_000
"""That wait to be written, at most: a few megabytes."""


class LossyQueueHandler(QueueHandler):
    """Puts lines in a queue that a thread empties. When they are not read, requests go on and lines are lost: the
    next one that finds room says how many."""

    def __init__(self, lines: "queue.Queue[logging.LogRecord]") -> None:
        super().__init__(lines)
        self.num_lost = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self.num_lost:
                self.queue.put_nowait(logging.makeLogRecord({"msg": f'{{"lost_lines": {self.num_lost}}}'}))
                self.num_lost = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self.num_lost += 1


def log_to_stderr() -> None:
    """Write the lines to standard error, and nowhere else, from a thread: a full pipe holds up whatever
    writes to it, and that must not be the event loop. What is left is written when the process ends."""
    writer = logging.StreamHandler(sys.stderr)
    writer.setFormatter(logging.Formatter("%(message)s"))
    handler = LossyQueueHandler(queue.Queue(MAX_LINES))
    listener = QueueListener(handler.queue, writer)
    listener.start()
    atexit.register(listener.stop)
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def write_line(call: Call) -> None:
    """Log a call that is over."""
    logger.info("%s", orjson.dumps(entry(call)).decode())


def entry(call: Call) -> dict[str, object]:
    """The line's fields; times in milliseconds. A request that failed early has few of them."""
    fields: dict[str, object] = {
        "time": datetime.fromtimestamp(call.unix_time, UTC).isoformat(timespec="milliseconds"),
        "request_id": call.request_id,
        "caller": call.caller,
        "path": call.path,
        "status": call.status,
        "outcome": call.outcome,
        "upload_ms": _ms(call.upload_s),
        "e2e_ms": _ms(call.e2e_s),
    }
    if call.client_request_id is not None:
        fields["client_request_id"] = call.client_request_id
    if call.body is not None:
        fields |= {"stream": call.body.stream, "n": call.body.n, "max_tokens": call.max_tokens}
    if call.degraded is not None:
        fields["degraded"] = call.degraded
    if call.outputs:
        tokens = TokenCounts.of(call.outputs)
        fields |= {
            "prompt_tokens": tokens.prompt,
            "cached_tokens": tokens.cached,
            "output_tokens": tokens.output,
            "finish_reasons": [completion.finish_reason for completion in call.completions],
        }
        first = call.completions[0].timeline
        if first.finished is not None:
            fields["phases_ms"] = {phase: _ms(seconds) for phase, seconds in first.phases().items()}
    return fields


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
