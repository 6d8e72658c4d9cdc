"""The guides: every line leads somewhere, and every field and metric that they name exists."""

import re
from pathlib import Path

import pytest
from fake_runner import FakeRunner

from course.lab.build import COURSE, lesson_sources, read_source
from course.lessons.start.contents import GUIDED, HEADING, anchor
from course.simulator.cluster.fleet import ClusterConfig
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.policies.config import EngineConfig
from minillm.server.metrics import EngineMetrics, Metrics

GUIDES = (COURSE / "guide_2am.md", COURSE / "guide_debugging.md")
QUESTIONS = COURSE / "guide_questions.md"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def links(path: Path) -> list[str]:
    text = path.read_text() if path.suffix == ".md" else "\n".join(cell.source for cell in read_source(path).cells)
    return [link for link in LINK.findall(text) if not link.startswith("http")]


def headings(target: Path) -> set[str]:
    text = target.read_text()
    if target.suffix == ".ipynb":
        cells = read_source(target.with_suffix(".py")).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return {anchor(heading) for _, heading in HEADING.findall(text)}


@pytest.mark.parametrize(
    "page", [*GUIDES, QUESTIONS, COURSE / "start.py", *lesson_sources()], ids=lambda page: page.name
)
def test_every_link_leads_to_a_heading_that_exists(page: Path) -> None:
    for link in links(page):
        file, _, wanted = link.partition("#")
        target = COURSE / file if file else page.with_suffix(".ipynb")
        assert target.exists(), link
        assert wanted != GUIDED, f"{link}: which of its headings?"
        assert not wanted or wanted in headings(target), link


def test_the_page_of_questions_has_as_many_as_it_says() -> None:
    page = QUESTIONS.read_text(encoding="utf-8")
    assert "Forty-two questions" in page and page.count("<details><summary>") == page.count("\n</details>") == 42


def test_links_are_found() -> None:
    assert all(links(page) for page in (*GUIDES, COURSE / "start.py"))
    assert any(links(page) for page in lesson_sources())


def known_field(name: str) -> bool:
    """`max_num_seqs`, `speculative.k`, `fleet.clients.backoff_s`."""
    model = EngineConfig
    for part in name.split("."):
        if part == "fleet" and model is EngineConfig:
            model = ClusterConfig
        elif model is not None and part in model.model_fields:
            kind = model.model_fields[part].annotation
            inner = [k for k in (kind, *getattr(kind, "__args__", ())) if hasattr(k, "model_fields")]
            model = inner[0] if inner else None
        else:
            return False
    return True


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_every_name_in_code_type_is_one_of_ours(page: Path) -> None:
    metrics = metric_names()
    other = {"EngineConfig", "max_tokens", "fleet.", "vllm:", "minillm:", "/metrics"}
    for name in set(re.findall(r"`([^`\n]+)`", page.read_text())) - other:
        if name.startswith(("--", "vllm:", "sglang:", "SGLANG_")):
            continue  # other servers' names, checked against their docs by hand
        assert (name in metrics) if name.startswith("minillm:") else known_field(name), name


def metric_names() -> set[str]:
    """As /metrics writes them, without the endings of histograms."""
    clock = VirtualClock()
    engine = Engine.on_runner(EngineConfig(max_model_len=64), FakeRunner(8, 16, clock), clock)
    text = (EngineMetrics(engine, "m").render() + Metrics("m").render()).decode()
    return set(re.findall(r"^# TYPE (minillm:\w+) ", text, re.M)) | set(re.findall(r"^(minillm:\w+)[ {]", text, re.M))
