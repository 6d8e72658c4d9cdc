"""ServeConfig: what the server does around the engine. Limits are here because overload is normal."""

import re

from pydantic import Field, field_validator, model_validator

from minillm.core.errors import ConfigError
from minillm.policies.config import EngineConfig
from minillm.strict_model import StrictModel

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\sA-Z]+")
"""An origin as a browser sends it, and compares it letter by letter."""
UNKEPT_BY_REPLICAS = {
    "queue_timeout_s": "the queue is Ray's router",
    "request_timeout_s": "a replica does not see how long a request waited in Ray's router",
    "max_requests_per_key": "each replica would count by itself",
    "overload_max_tokens": "the queue is Ray's router, and a replica never sees one",
}
"""Fields of both configs that would promise something with `replicas` and not keep it, and why."""


class ServeConfig(StrictModel):
    """All but the engine's own fields, of which the server reads max_queue_len, queue_timeout_s, max_prompt_tokens."""

    _error: type[Exception] = ConfigError

    host: str = Field(
        "127.0.0.1", min_length=1, description="address to listen on; 0.0.0.0 = reachable from other machines"
    )
    port: int = Field(8000, ge=0, le=65535, description="0 = any free one; the ready line says which")
    served_model_name: str | None = Field(
        None, min_length=1, description="the model's name in the API; None = as --model says"
    )
    api_key_file: str | None = Field(
        None, description="accepted keys, one per line (# starts a comment); None = no keys"
    )
    cors_origin: tuple[str, ...] = Field(
        (), description="web pages from here may call the server, such as http://localhost:3000; * = from anywhere"
    )

    max_connections: int = Field(800, ge=1, description="open connections, idle ones too; 503 beyond")
    head_timeout_s: float = Field(10, gt=0, description="longest time to send URL and headers; 408 beyond")
    max_body_bytes: int = Field(1_000_000, ge=1, description="largest request body; 413 beyond")
    body_timeout_s: float = Field(30, gt=0, description="longest time to send the body; 408 beyond")
    max_requests_per_key: int | None = Field(
        None, ge=1, description="requests in flight for one API key (without keys: one client address); 429 beyond"
    )
    request_timeout_s: float | None = Field(None, gt=0, description="deadline of a whole request; 504 beyond")
    reader_timeout_s: float = Field(60, gt=0, description="cut a stream whose client has read nothing for this long")
    drain_timeout_s: float = Field(30, gt=0, description="after SIGTERM, time for requests in flight to finish")
    overload_max_tokens: int | None = Field(
        None, ge=1, description="cap on output tokens while requests queue; None = as requested"
    )

    access_log: bool = Field(True, description="a JSON line for each request on standard error, without its text")
    otlp_endpoint: str | None = Field(
        None, description="OpenTelemetry collector for spans, such as http://127.0.0.1:4318"
    )

    replicas: int | None = Field(None, ge=1, description="number of engines, each in its own process, on Ray Serve")
    max_replicas: int | None = Field(None, ge=1, description="autoscale from --replicas up to this many")

    @field_validator("cors_origin")
    @classmethod
    def _as_browsers_write_them(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin not in ("*", "null") and not ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is no origin: write scheme, host and port, without a path and in lower case, such as "
                    "http://localhost:3000; or * for all"
                )
        return origins

    @model_validator(mode="after")
    def _consistent(self) -> "ServeConfig":
        if self.max_replicas is not None and (self.replicas is None or self.max_replicas < self.replicas):
            raise ValueError("max_replicas needs replicas, and must be at least as many")
        return self

    def check_replicas(self, engine: EngineConfig) -> None:
        """Refuse what would have no effect, or another one, with `replicas`.

        Raises:
            ConfigError: such a field was set.
        """
        given = {**engine.model_dump(exclude_unset=True), **self.model_dump(exclude_unset=True)}
        for name, why in UNKEPT_BY_REPLICAS.items():
            if self.replicas is not None and given.get(name) is not None:
                flag = "--" + name.removesuffix("_s").replace("_", "-")
                raise ConfigError(f"{flag} cannot be kept with --replicas ({why}): leave one of them out")
