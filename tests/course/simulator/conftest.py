"""Public recordings that lie beside the checkout on some machines; none of them is part of the project."""

from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture(scope="session")
def recording() -> Callable[[str], Path]:
    """Finds a recording by its name; without it, the test is skipped."""

    def find(name: str) -> Path:
        path = DATA / name
        if not path.exists():
            pytest.skip(f"{path} is not here: this test reads a public recording that the project does not ship")
        return path

    return find
