"""What `minillm bench speculation` counts, and that it can be run."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course.measure.speculation import SpeculationJob, SpeculationRun, make_jobs, speculative_fields, summarize
from course.measure.speculation import run as measure
from minillm import cli
from minillm.bench.target import Target
from minillm.core.errors import ConfigError
from minillm.observe.speculation import SpeculationSummary
from minillm.policies.config import SpeculativeConfig


def run(seconds: float, decode_s: float, accepted: list[int]) -> SpeculationRun:
    drafted = [10] * len(accepted)
    return SpeculationRun(seconds, decode_s, 100, SpeculationSummary(drafted, accepted, 0.1, 1.0, 10, 10))


def test_ratios_are_taken_within_each_repeat() -> None:
    job = SpeculationJob("chat", "", ["a"], 8)
    off = [run(10.0, 8.0, []), run(20.0, 16.0, [])]  # the machine was slow the second time
    fast = [run(5.0, 2.0, [10, 5]), run(10.0, 4.0, [10, 5])]
    result = summarize(job, "ngram", fast, off)
    assert (result.speedup.low, result.speedup.high) == (2.0, 2.0)
    assert result.decode_speedup.median == 4.0
    assert result.emitted_per_verify == 2.5 and result.acceptance_at == [1.0, 0.5]
    assert summarize(job, "off", off, off).speedup.median == 1.0


def test_texts_are_compared_with_those_of_the_same_repeat() -> None:
    def said(*texts: list[int]) -> SpeculationRun:
        return SpeculationRun(1.0, 1.0, 10, SpeculationSummary([], [], 0, 0, 0, 0), texts)

    job = SpeculationJob("chat", "", ["a", "b"], 8)
    off, other = [said([1, 2], [3]), said([1, 2], [4])], [said([1, 2], [4]), said([1, 2], [4])]
    assert summarize(job, "ngram", other, off).same_text == 0.75
    drawn = SpeculationJob("hot", "", ["a", "b"], 8, temperature=1.5)
    assert summarize(drawn, "ngram", other, off).same_text is None


def test_prompts_of_ones_own(tiny_llama_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("What is this?\n\n  And that?  \n")
    [job] = make_jobs(quick=False, prompts=file)
    assert job.prompts == ["What is this?", "And that?"] and "mine.txt" in job.title
    measured = measure(Target(str(tiny_llama_path), dtype="float32"), True, ["ngram"], None, 1, file)
    assert [(row.job, row.same_text) for row in measured.results] == [("yours", 1.0)] * 2
    with pytest.raises(ConfigError, match="no job copy with --quick: there is only yours"):
        measure(Target(str(tiny_llama_path)), True, ["ngram"], ["copy"], 1, file)
    file.write_text("\n")
    with pytest.raises(ConfigError, match="no prompt in it"):
        make_jobs(quick=True, prompts=file)
    with pytest.raises(ConfigError, match="cannot be read"):
        make_jobs(quick=True, prompts=tmp_path)


def test_methods_share_the_fields_that_each_reads_and_no_other() -> None:
    given = SpeculativeConfig(method="draft_head", model="folder", k=3)
    assert speculative_fields(given, "draft_head") == {"method": "draft_head", "model": "folder", "k": 3}
    assert speculative_fields(given, "ngram") == {"method": "ngram", "k": 3}
    assert speculative_fields(None, "ngram") == {"method": "ngram"}


def test_fields_of_a_method_that_is_not_measured_are_refused(tiny_llama_path: Path) -> None:
    target = Target(str(tiny_llama_path), fields={"speculative": {"method": "draft_head", "model": "folder"}})
    with pytest.raises(ConfigError, match="give it as a --method, too"):
        measure(target, True, ["ngram"], None, 1)


@pytest.mark.parametrize("job", ["cpoy", "crowd"])
def test_jobs_that_there_are_not(job: str, tiny_llama_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"no job {job} with --quick: there is only chat, copy"):
        measure(Target(str(tiny_llama_path)), True, ["ngram"], ["chat", job], 1)


def test_the_command(tiny_llama_path: Path) -> None:
    arguments = ["bench", "speculation", "--model", str(tiny_llama_path), "--method", "ngram", "--quick", "--json"]
    arguments += ["--set", "speculative.k=3", "--set", "speculative.method=ngram"]
    result = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
    report = json.loads(result.stdout)
    found = {(row["job"], row["method"]) for row in report["results"]}
    assert found == {(job, method) for job in ("chat", "copy") for method in ("off", "ngram")}
    assert report["speculative"]["ngram"]["k"] == 3
