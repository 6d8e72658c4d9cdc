"""One JSON line for each request: who, how much, how long, how it ended. Never what was said."""

import logging
import sys
from datetime import UTC, datetime

import orjson

from minillm.serve.call import Call

logger = logging.getLogger("minillm.access")


def log_to_stderr() -> None:
    """Write the lines to standard error, and nowhere else."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


class AccessLog:
    def observe(self, call: Call) -> None:
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
        "e2e_ms": _ms(call.finished - call.arrival),
    }
    if call.body is not None:
        fields |= {"stream": call.body.stream, "n": call.body.n, "max_tokens": call.max_tokens}
    if call.degraded is not None:
        fields["degraded"] = call.degraded
    if call.outputs:
        completions = [completion for output in call.outputs for completion in output.completions]
        fields |= {
            "prompt_tokens": sum(len(output.prompt_token_ids) for output in call.outputs),
            "cached_tokens": sum(output.num_cached_tokens for output in call.outputs),
            "output_tokens": sum(len(completion.token_ids) for completion in completions),
            "finish_reasons": [completion.finish_reason for completion in completions],
        }
        first = completions[0].timeline
        if first.finished is not None:
            fields["phases_ms"] = {phase: _ms(seconds) for phase, seconds in first.phases().items()}
    return fields


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
