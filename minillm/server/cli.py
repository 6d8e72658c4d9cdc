"""`minillm serve`. Torch is imported when the command runs, not before."""

import inspect
import json
import logging
import sys
from typing import Annotated, Any

import typer

from minillm.policies.config import EngineConfig
from minillm.server.config import ServeConfig
from minillm.server.flags import flags_of, given

DEFAULT_MAX_QUEUE = 256
"""A server's queue has an end, unless told otherwise by a large number."""

JSON_OPTION = Annotated[bool, typer.Option("--json", help="The ready line as a JSON object.")]


def serve(as_json: bool, **values: Any) -> None:
    """Serve the model over HTTP, with OpenAI's API. Prints one line when ready; SIGTERM or Ctrl-C drains it."""
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
        *flags_of(ServeConfig, "Server"),
        *flags_of(EngineConfig, "Engine", {"max_queue_len": DEFAULT_MAX_QUEUE}),
        inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JSON_OPTION),
    ]
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


_with_flags()
