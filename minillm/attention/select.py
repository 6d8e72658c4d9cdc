"""Which attention backend runs."""

from minillm.attention.base import AttentionBackend
from minillm.attention.eager import EagerAttention
from minillm.attention.sdpa import SDPAAttention


def select_backend(name: str) -> AttentionBackend:
    """The backend called `name` in EngineConfig.attention_backend; auto = the fastest that always works."""
    return {"auto": SDPAAttention, "sdpa": SDPAAttention, "eager": EagerAttention}[name]
