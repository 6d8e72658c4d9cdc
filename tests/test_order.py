"""conftest.py names files that come first: they exist, and come in that order."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILES = sorted(path.as_posix() for path in TESTS.rglob("test_*.py"))


def test_files_that_wait_come_before_those_that_take_long_and_all_of_them_exist(pytestconfig: pytest.Config) -> None:
    conftest = pytestconfig.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    first = sorted(FILES, key=conftest._turn)
    for part in conftest.WAITING:
        assert any(part in file for file in FILES), f"no test is at {part} any more"
    place = [next(i for i, file in enumerate(first) if file.endswith(f"/{name}")) for name in conftest.LONGEST]
    waits = [i for i, file in enumerate(first) if any(part in file for part in conftest.WAITING)]
    assert first[0].endswith(conftest.WAITING[0])
    assert waits == [*range(len(waits))] and place == [*range(len(waits), len(waits) + len(place))]
