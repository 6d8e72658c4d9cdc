"""Processes that are killed leave nobody behind; what they were asked for can be asked for again."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="these are signals")

GRADES_FOR_EVER = """
import threading
from dataclasses import replace
from course.grading import runner
from course.grading.exercises import find

exercise = replace(find("percentiles"), limit_s=10_000.0)
text = "print('begun', flush=True)\\nwhile True:\\n    pass\\n"
with runner.GradingWorker() as worker:
    submission = runner.Submission.of_text(text, "answer.py")
    thread = threading.Thread(target=worker.grade, args=(exercise, submission, 0), daemon=True)
    thread.start()
    while not worker._children or "begun" not in worker._child("0").printed.text():
        thread.join(0.05)
    print(worker._child("0")._process.pid, flush=True)
    thread.join()
"""


def test_an_endless_answer_ends_when_the_kernel_that_checks_it_is_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", GRADES_FOR_EVER]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        try:
            child = psutil.Process(int(parent.stdout.readline()))
        finally:
            parent.kill()
    _, left = psutil.wait_procs([child], timeout=PATIENCE_S)
    assert not left


LESSON = """
from course.lab.lab import Lab
lab = Lab(short=True, model={model!r}, dtype="float32", max_model_len=512, num_kv_blocks=96)
run = lab.run("chat")
print("played", len(run.finished) == len(run.rows))
"""
FOR_EVER = """
from minillm import SamplingParams
stream = lab._engine.submit("Hello", SamplingParams(max_tokens=10**6, ignore_eos=True))
print("begun", next(iter(stream)).finished)
"""


@pytest.mark.slow
def test_a_kernel_that_is_killed_while_the_engine_runs(tiny_llama_path: Path) -> None:
    from jupyter_client.manager import start_new_kernel

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    manager, client = start_new_kernel(env=environment, startup_timeout=300)
    lesson = LESSON.format(model=str(tiny_llama_path))

    def execute(code: str) -> str:
        said: list[str] = []
        answer = client.execute_interactive(
            code, timeout=300, output_hook=lambda message: said.append(str(message["content"].get("text", "")))
        )
        assert answer["content"]["status"] == "ok", answer["content"]
        return "".join(said)

    try:
        assert "played True" in execute(lesson)
        assert "begun False" in execute(FOR_EVER)
        killed = psutil.Process(manager.provisioner.pid)
        family = [killed, *killed.children(recursive=True)]
        killed.kill()
        _, left = psutil.wait_procs(family, timeout=PATIENCE_S)
        assert not left
        manager.restart_kernel(now=True)
        client.wait_for_ready(timeout=300)
        assert "played True" in execute(lesson)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
