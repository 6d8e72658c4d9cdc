"""minillm: an LLM inference engine to read, run and measure.

from minillm import LLM, SamplingParams

llm = LLM(model="smollm2-135m")
output = llm.generate("The capital of France is", SamplingParams(max_tokens=16))[0]
print(output.text, output.timeline.phases())
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minillm.core.params import SamplingParams
    from minillm.frontend.engine import Engine
    from minillm.frontend.llm import LLM
    from minillm.frontend.outputs import RequestOutput
    from minillm.frontend.structured_outputs import StructuredOutputsParams
    from minillm.policies.config import EngineConfig

# PyTorch's OpenMP threads (GNU's, on Linux) wait for each other by spinning, for milliseconds. When a browser
# or another program wants the same cores, they keep each other from running, and steps take several times
# as long. Spin for a shorter while, then sleep. This must be set before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "30000")

# Large tensors get huge pages where the operating system has some to give (Linux). Likewise before torch.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

# Don't tell Hugging Face which versions of what are in use here.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

__version__ = "0.1.0"
__all__ = ["LLM", "Engine", "EngineConfig", "RequestOutput", "SamplingParams", "StructuredOutputsParams"]

_HOMES = {
    "LLM": "minillm.frontend.llm",
    "Engine": "minillm.frontend.engine",
    "EngineConfig": "minillm.policies.config",
    "RequestOutput": "minillm.frontend.outputs",
    "SamplingParams": "minillm.core.params",
    "StructuredOutputsParams": "minillm.frontend.structured_outputs",
}


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562): `import minillm` and `minillm --help` do not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'minillm' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
