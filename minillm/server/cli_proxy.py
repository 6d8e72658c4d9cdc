"""`minillm proxy`, as it is typed."""

import json
from typing import Annotated

import typer


def proxy(
    upstream: Annotated[str, typer.Option(help="The server behind it.")] = "http://127.0.0.1:8000",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 = any that is free.")] = 8001,
    hold_ms: Annotated[float, typer.Option(help="Each piece of a stream goes on this much later.")] = 0.0,
    buffer_bytes: Annotated[int, typer.Option(help="Nothing goes on before so many bytes are there.")] = 0,
    coalesce: Annotated[int, typer.Option(help="So many events go on together.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Say where it listens as one JSON object.")] = False,
) -> None:
    """A proxy that spoils streams on purpose, to show latency that no GPU has caused."""
    import asyncio

    import uvicorn

    from minillm.server.proxy import Spoiling, make_proxy

    app = make_proxy(upstream, Spoiling(hold_ms, buffer_bytes, coalesce))
    server = uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning"))

    async def run() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            url = f"http://{host}:{server.servers[0].sockets[0].getsockname()[1]}"
            words = json.dumps({"url": url, "upstream": upstream}) if as_json else f"{url} -> {upstream}"
            print(words, flush=True)
        await serving

    asyncio.run(run())
