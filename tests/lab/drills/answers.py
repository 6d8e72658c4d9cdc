"""Answers of people who have never seen the model answers. Those that are prose are in answers.toml."""

import tomllib
from pathlib import Path

_WRITTEN = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
FLAGSHIP_PARAPHRASES: list[str] = _WRITTEN["flagship_paraphrases"]
FLAGSHIP_SHORT: str = _WRITTEN["flagship_short"]
PREACHING: str = _WRITTEN["preaching"]
FLUENT: str = _WRITTEN["fluent"]
SHORT_AND_RIGHT: dict[str, str] = _WRITTEN["short_and_right"]
RIGHT_STATEMENTS: list[str] = _WRITTEN["right_statements"]
WRONG_STATEMENTS: list[str] = _WRITTEN["wrong_statements"]
CORRECTED: dict[str, list[str]] = _WRITTEN["corrected"]
"""By drill: a sentence that costs points, and one on the same matter that does not."""

KEYWORDS = (
    "queue prefill first token decode stream TTFT ITL p99 14.4 s KV cache pressure GQA admission control "
    "chunked prefill prefix caching "
    "speculative decoding quality eval rollback canary steady state spike queue wait if then first second third. "
) * 6

TEMPLATE = " ".join(
    f"We should use {name} because it reduces {phase} latency by {n}%."
    for n, (name, phase) in enumerate(
        [("admission control", "queue"), ("chunked prefill", "prefill"), ("prefix caching", "prefill"),
         ("speculative decoding", "decode"),
         ("int8 KV", "decode"), ("GQA", "decode"), ("replicas", "queue"), ("quantization", "decode")], start=31,
    )
)  # fmt: skip

GARBAGE = (
    "",
    "   \n\n\t ",
    "asdf",
    "?" * 500,
    "1 / 0 = 0. 0 x 0 = 0. 5 / 0. 1e999 x 1e999 = 3",
    "$" * 50 + "{ttft} {} {0} %s \\",
    "\x00\x01\ud7ff " * 20,
    "Die Latenz entsteht in der Warteschlange; ich würde zuerst die Wartezeit messen und dann die Stapelgröße senken.",
    "レイテンシーの問題はキューにあります。まず待ち時間を測定します。80 ms × 180 = 14.4 秒。",
    "<script>alert('x')</script> <b>queue</b> " * 30,
    "queue " * 5000,
)
