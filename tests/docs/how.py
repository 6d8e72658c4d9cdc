"""How each command of the pages is run by a test. A command that no rule names is run as it stands, in `make test`.

A rule's pattern is searched in the command's text; the first rule that fits counts. Each rule must fit something, so
what is not run is listed here, and nowhere else.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Way(Enum):
    RUN = "run in `make test`"
    SLOW = "run in `make slow`"
    SERVED = "run in `make test`, against a server of the test's"
    PARSED = "its options are parsed, and it is not run"
    DRY = "make says what it would do (make -n)"
    PATHS = "what it names exists"
    ELSEWHERE = "for another machine, or a program that need not be here: read, not run"


@dataclass(frozen=True)
class Rule:
    pattern: str
    way: Way
    why: str
    more: Sequence[str] = ()
    """Arguments that make it short, put at its end."""


FEW = ("--max-tokens", "4")
RULES = (
    Rule(r"--tensor-parallel-size 2", Way.ELSEWHERE, "it wants two GPUs"),
    Rule(r"^(docker|nvidia-smi|tmux|ssh)\b", Way.ELSEWHERE, "for a GPU box, or a machine with Docker"),
    Rule(r"^MAX_JOBS=4 \.venv/bin/pip install", Way.ELSEWHERE, "it builds flash-attn, with nvcc"),
    Rule(r"^MINILLM_LAB_MODEL=\S+ make lab", Way.ELSEWHERE, "it opens JupyterLab with a large model"),
    Rule(r"sudo shutdown", Way.ELSEWHERE, "it shuts the machine down"),
    Rule(r"^\.venv/bin/minillm doctor", Way.ELSEWHERE, "tests/engine/test_doctor.py runs it"),
    Rule(r"^\.ci/as-ubuntu ", Way.ELSEWHERE, "tests/course/boxes/test_platforms.py runs it"),
    Rule(r"^make ", Way.DRY, "it sets up a machine, or takes up to hours"),
    Rule(r"pytest ", Way.PATHS, "a test does not run the tests"),
    Rule(r"^minillm chat$", Way.RUN, "its input is at its end at once", FEW),
    Rule(
        r"^minillm generate .*SMALLER",
        Way.PARSED,
        "SMALLER is a model of the reader's; tests/engine/speculation runs it",
    ),
    Rule(r"^minillm generate ", Way.RUN, "four tokens will do", FEW),
    Rule(r"^minillm bench serve .*--url", Way.SERVED, "three requests", ("--num-requests", "3")),
    Rule(
        r"^minillm bench serve ",
        Way.SERVED,
        "three requests",
        ("--num-requests", "3", "--url", "http://127.0.0.1:8000"),
    ),
    Rule(r"^minillm bench ", Way.PARSED, "minutes; tests/engine/bench/test_bench_cli.py runs it on a tiny model"),
    Rule(r"^minillm (serve|proxy)", Way.SLOW, "started as a process, asked, and stopped"),
    Rule(r"^curl ", Way.SERVED, "it asks a server"),
    Rule(r"^minillm incident .*--deploy", Way.SLOW, "half a minute of playing traffic"),
    Rule(r"^minillm incident --(classic|today)", Way.SLOW, "seconds of playing traffic"),
    Rule(r"^minillm incident --seed 7 --ask", Way.SLOW, "seconds of playing traffic"),
    Rule(r"^minillm incident --seed 7 --difficulty 1", Way.SLOW, "seconds of playing traffic"),
    Rule(r"^minillm simulate --plan", Way.SLOW, "plays a fleet several times"),
    Rule(r"^minillm simulate --requests", Way.SLOW, "it wants the profile of the command before it"),
    Rule(r"^minillm simulate ", Way.RUN, "twenty requests will do", ("--num-requests", "20")),
    Rule(r"^minillm calibrate --validate", Way.PARSED, "ten minutes of measuring; tests/course/simulator/calibration"),
    Rule(r"^minillm calibrate --from-requests", Way.SLOW, "it fits constants to a log"),
    Rule(r"^python -m course\.incidents\.alerts", Way.PARSED, "minutes of playing; test_monitoring.py plays one"),
    Rule(r"^python -m course\.lab\.build", Way.PARSED, "it runs notebooks; tests/course/lab/test_build.py builds"),
)

AS_IT_STANDS = Rule("", Way.RUN, "nothing speaks against it")

SKETCHES = {
    ("course/grading/AUTHORS.md", "def right(samples, q)"): "a sketch with gaps for the author to fill in",
    ("course/grading/AUTHORS.md", "def share(self, block_ids)"): "a method without its class: it shows the marks",
    ("course/grading/AUTHORS.md", "from course.grading.plug_in"): "plan_step is the learner's own",
}
"""Python blocks that are compiled only: (page, beginning of the block), and why."""


def rule_of(command: str) -> Rule:
    return next((rule for rule in RULES if re.search(rule.pattern, command)), AS_IT_STANDS)
