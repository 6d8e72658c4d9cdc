"""`minillm serve`. Torch is imported when the command runs, not before."""

import inspect
import json
import logging
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from minillm.core.errors import ConfigError
from minillm.policies.config import EngineConfig
from minillm.server.config import ServeConfig
from minillm.server.flags import flags_of, given

DEFAULT_MAX_QUEUE = 256
"""A server's queue has an end, unless told otherwise by a large number."""

VLLM_FLAGS = {
    "--allowed-origins": "use --cors-origin",
    "--api-key": "use --api-key-file",
    "--chat-template": "leave it out: the checkpoint's own is used",
    "--data-parallel-size": "use --replicas",
    "--disable-log-requests": "use --no-access-log",
    "--disable-uvicorn-access-log": "use --no-access-log",
    "--enable-auto-tool-choice": "leave it out: tools need no flag",
    "--enforce-eager": "use --no-cuda-graphs",
    "--generation-config": "leave it out: what a request doesn't set has OpenAI's default",
    "--gpu-memory-utilization": "use --kv-cache-memory-gb",
    "--max-num-queued-reqs": "use --max-queue",
    "--num-gpu-blocks-override": "use --num-kv-blocks",
    "--reasoning-parser": "leave it out: what is thought is part of the answer",
    "--scheduling-policy": "use --scheduling-order",
    "--speculative-config": "use --speculative",
    "--ssl-certfile": "put a proxy that speaks TLS in front",
    "--ssl-keyfile": "put a proxy that speaks TLS in front",
    "--tool-call-parser": "leave it out: tools need no flag",
    "--trust-remote-code": "leave it out: a checkpoint's code is never run",
    "-tp": "use --tensor-parallel-size",
}
"""Flags of `vllm serve`, and what to do here."""

MODEL_ARGUMENT = Annotated[str | None, typer.Argument(metavar="MODEL", help="The same as --model.")]
JSON_OPTION = Annotated[bool, typer.Option("--json", help="The ready line as a JSON object.")]


class ServeCommand(TyperCommand):
    """Tells what to do here instead of a flag of vLLM's, which may be written with underscores."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        for flag in (word.partition("=")[0].replace("_", "-") for word in args):
            if flag in VLLM_FLAGS:
                context.fail(f"{flag} is vLLM's: {VLLM_FLAGS[flag]} (see docs/server.md)")
        return super().parse_args(context, args)


def serve(model_argument: str | None, as_json: bool, **values: Any) -> None:
    """Serve the model over HTTP, with OpenAI's API. Prints one line when ready; SIGTERM or Ctrl-C drains it."""
    if model_argument is not None:
        if values["model"] not in (None, model_argument):
            raise ConfigError(f"two models are named, {model_argument!r} and {values['model']!r}: leave one out")
        values["model"] = model_argument
    engine = EngineConfig(**{"max_queue_len": DEFAULT_MAX_QUEUE, **given(EngineConfig, values)})
    config = ServeConfig(**given(ServeConfig, values))
    config.check_replicas(engine)

    def ready(url: str) -> None:
        name = config.served_model_name or engine.model
        if as_json:
            print(json.dumps({"url": f"{url}/v1", "model": name}), flush=True)
        else:
            print(f"minillm serves {name} at {url}/v1 (Ctrl-C to stop)", flush=True)

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    if config.replicas is not None:
        from minillm.server.deploy_ray import run_replicas as run
    else:
        from minillm.server.server import run
    run(engine, config, ready)


def _with_flags() -> None:
    """Typer reads the signature: give it a parameter for each field of both configs."""
    parameters = [
        inspect.Parameter("model_argument", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=MODEL_ARGUMENT),
        *flags_of(ServeConfig, "Server"),
        *flags_of(EngineConfig, "Engine", {"max_queue_len": DEFAULT_MAX_QUEUE}),
        inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JSON_OPTION),
    ]
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


_with_flags()
