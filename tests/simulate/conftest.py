"""Public recordings that lie beside the checkout on some machines; none of them is part of the project."""

from pathlib import Path

import pytest

DATA = Path(__file__).parents[3] / "shared" / "data"


def recording(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not here: this test reads a public recording that the project does not ship")
    return path


@pytest.fixture(scope="session")
def rtx_4090_log() -> Path:
    """300 requests that vLLM served (casys-kaist/LLMServingSim, MIT)."""
    return recording("vllm-RTX4090-Llama-3.1-8B/requests.jsonl")
