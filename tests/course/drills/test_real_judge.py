"""A real model behind minillm's own server as a drill's judge: the smallest one is refused, in words."""

from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from server.running import running

from course.drills import judge
from course.drills.library import find_drill
from course.drills.sitting import sit
from minillm.model.loader import load_model
from minillm.policies.config import EngineConfig
from minillm.server.config import ServeConfig


@pytest.mark.slow
def test_the_courses_own_small_model_is_no_judge_and_is_told_so(smollm_path: Path, monkeypatch) -> None:
    """A real model behind minillm's own server: 135 million parameters give no grade that can be read."""
    monkeypatch.setattr(judge, "MOST_TOKENS", 40)
    drawn = find_drill("p99-8s").drawn()
    config = EngineConfig(model=str(smollm_path), dtype="float32", device="cpu", num_kv_blocks=256)
    with running(config, ServeConfig(port=0), load_model(config)) as server:
        with httpx.Client(timeout=600) as http:
            assert judge.served_model(f"{server.url}/v1", http) not in ("", judge.DEFAULT)
        heard = judge.hear(drawn, drawn.answers["staff"], f"{server.url}/v1", judge.DEFAULT, httpx.Client(timeout=600))
    assert not heard.agreement.may_speak and heard.opinions == {}
    shown = f"{replace(sit(drawn, text=drawn.answers['staff']), heard=heard)}"
    assert "isn't heard: its answer could not be read" in shown
