"""A replay holds every stamp of its run; the ruler counts who lies beyond it."""

import gzip
import json
import re
from base64 import b64decode

import pytest
from made_run import made_run

from course.lab.replay import PACKED, Replay
from course.lab.ruler import Ruler, buckets


def test_a_page_without_a_kernel_has_the_whole_run_to_play() -> None:
    run = made_run(num_requests=4)
    replay = Replay(run, row=2)
    html = replay.static_html()
    packed = re.search(rf'{PACKED}="([^"]+)"', html).group(1)
    assert json.loads(gzip.decompress(b64decode(packed))) == json.loads(json.dumps(replay.played))
    for row, view in zip(replay.played["run"]["rows"], run.views):
        assert row["borders"] == pytest.approx([border - run.start for border in view.borders], abs=1e-4)
    assert "<svg" in html and "request #2" in html
    with pytest.raises(IndexError):
        Replay(run, row=4)


def test_the_ruler_counts_what_is_beyond_it() -> None:
    run = made_run(num_requests=10)
    ruler = Ruler(run, "TTFT")
    at_99 = ruler.view.value
    assert "1 beyond" in at_99
    ruler.set(q=50)
    assert "5 beyond" in ruler.view.value
    ruler.set(metric="E2E")
    assert "E2E" in ruler.view.value


def test_buckets_hold_every_value_once() -> None:
    groups = buckets(made_run(num_requests=10, prompt=200), "ITL")
    assert sorted(groups["all"]) == sorted(
        value for name, values in groups.items() if name != "all" for value in values
    )
    assert set(groups) == {"all", "65–256 tokens"}
