"""A played trace as a file for https://ui.perfetto.dev: for each replica its requests in phases, and its steps."""

import json
from pathlib import Path
from typing import Any

from course.challenge.play import Played
from course.challenge.result import how
from minillm.core.request import FinishReason
from minillm.observe.records import RequestRecord
from minillm.observe.trace import chrome_trace

PROCESSES = 2
"""Of one replica's trace: requests, engine."""


def replay(played: Played) -> dict[str, Any]:
    """Chrome's trace format, JSON-ready.

    Args:
        played: with `keeps_steps`.
    """
    events: list[dict[str, Any]] = []
    for replica in played.replicas:
        fates = {str(fate.request.id): fate for fate in played.fates if fate.replica == replica.number}
        records = [
            RequestRecord(
                name,
                fate.request.prompt_tokens,
                fate.reply.num_cached_tokens,
                FinishReason.LENGTH if fate.reply.token_ids else FinishReason.TIMEOUT,
                fate.reply.timeline,
            )
            for name, fate in fates.items()
            if fate.reply is not None and fate.reply.timeline is not None
        ]
        for event in chrome_trace(records, replica.engine.steps, origin=0.0)["traceEvents"]:
            event["pid"] += PROCESSES * replica.number
            shown = event.get("args", {})
            if event["name"] == "process_name":
                shown["name"] = f"replica {replica.number}: {shown['name']}"
            elif event["name"] == "process_sort_index":
                shown["sort_index"] += PROCESSES * replica.number
            elif event["name"] == "thread_name" and (fate := fates.get(shown["name"].partition(" ")[0])):
                shown["name"] = f"{shown['name']} {fate.request.kind}, {how(fate)}"
            events.append(event)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_replay(path: Path, played: Played) -> None:
    path.write_text(json.dumps(replay(played)), encoding="utf-8")
