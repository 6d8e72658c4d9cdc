"""Clients that leave, read slowly, reconnect and send nonsense; and a server that is stopped and started again.

    make soak                                                            # the engine for an hour, then this
    PYTHONPATH=.:tests/engine python -m server.soak --seconds 60

What was promised: an answer that has begun is whole and right, whatever the other clients do and when SIGTERM comes; a
request that is not answered is refused by 503 or by a closed port. After each life nothing is held.
"""

import argparse
import asyncio
import json
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx
import psutil
from server.running import serve_process

PROMPTS = [f"Tell me about the number {i} and the ones around it." for i in range(12)]
CLIENTS = 24
KINDS = {"good": 9, "leaver": 10, "slow": 4, "reconnect": 4, "malformed": 3}
"""How many of 30 requests are of each kind."""


class Soak:
    """Sends requests, and checks every good answer.

    Args:
        right: by prompt, the answer of 16 tokens.
    """

    def __init__(self, url: str, model: str, right: dict[str, str], seed: int) -> None:
        self.url, self.model, self.right = url, model, right
        self.random = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.may_refuse = False
        """The server is stopping, or not there."""

    def run(self, num_requests: int) -> None:
        asyncio.run(self._run(num_requests))

    async def _run(self, num_requests: int) -> None:
        kinds = self.random.choices(list(KINDS), list(KINDS.values()), k=num_requests - len(KINDS)) + list(KINDS)
        async with self.client() as client:
            places = asyncio.Semaphore(CLIENTS)

            async def one(kind: str) -> None:
                async with places:
                    await self.one(client, kind)

            await asyncio.gather(*(one(kind) for kind in kinds))

    async def until(self, stop: asyncio.Event) -> None:
        """Clients that go on until they are told to stop."""

        async def one(client: httpx.AsyncClient) -> None:
            while not stop.is_set():
                [kind] = self.random.choices(list(KINDS), list(KINDS.values()))
                await self.one(client, kind)

        async with self.client() as client:
            await asyncio.gather(*(one(client) for _ in range(CLIENTS)))

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=120, limits=httpx.Limits(max_connections=2 * CLIENTS))

    async def one(self, client: httpx.AsyncClient, kind: str) -> None:
        """One request of a kind. A refusal is fine while the server stops, and nothing else ever is."""
        try:
            await getattr(self, f"_{kind}")(client)
        except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError):
            # The port is closed, or a request on an idle connection has crossed the server's closing of it.
            if not self.may_refuse:
                raise
            kind = "refused"
            await asyncio.sleep(0.2)
        self.outcomes[kind] += 1

    def _body(self, prompt: str, stream: bool, max_tokens: int = 16) -> dict:
        wanted = {"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True}
        return {"model": self.model, "prompt": prompt, "stream": stream, **wanted}

    async def _good(self, client: httpx.AsyncClient, pause_s: float = 0.0) -> None:
        prompt, stream = self.random.choice(PROMPTS), pause_s > 0 or self.random.random() < 0.5
        async with client.stream("POST", "/v1/completions", json=self._body(prompt, stream)) as answer:
            lines = []
            try:
                async for line in answer.aiter_lines():
                    lines.append(line)
                    await asyncio.sleep(pause_s)
            except httpx.TransportError as error:
                raise AssertionError(f"an answer that had begun broke off: {lines}") from error
        if answer.status_code == 503 and self.may_refuse:
            assert int(answer.headers["retry-after"]) >= 1
            return
        assert answer.status_code == 200, lines
        if stream:
            events = [line[6:] for line in lines if line.startswith("data: ")]
            assert events.pop() == "[DONE]"
            text = "".join(json.loads(event)["choices"][0]["text"] for event in events)
        else:
            text = json.loads("".join(lines))["choices"][0]["text"]
        assert text == self.right[prompt]

    async def _slow(self, client: httpx.AsyncClient) -> None:
        await self._good(client, pause_s=0.02)

    async def _reconnect(self, client: httpx.AsyncClient) -> None:
        async with self.client() as another:
            await self._good(another)

    async def _leaver(self, client: httpx.AsyncClient) -> None:
        stream, patience = self.random.random() < 0.7, self.random.randrange(12)
        body = self._body(self.random.choice(PROMPTS), stream, max_tokens=200)
        try:
            async with (
                asyncio.timeout(None if stream else patience / 100),
                client.stream("POST", "/v1/completions", json=body) as answer,
            ):
                async for _ in answer.aiter_lines():
                    patience -= 1
                    if patience < 0:
                        return  # leaving the block closes the connection
        except TimeoutError:
            pass

    async def _malformed(self, client: httpx.AsyncClient) -> None:
        good = json.dumps(self._body("x", False)).encode()
        cut = good[: self.random.randrange(len(good))]
        content = self.random.choice([b"", b"{", cut, good.replace(b"16", b'"16"'), good.replace(b"n", b"m")])
        answer = await client.post("/v1/completions", content=content)
        assert 400 <= answer.status_code < 500 or (answer.status_code == 503 and self.may_refuse), answer.text


def check_at_rest(url: str, process: "subprocess.Popen[str]", before: tuple[int, int]) -> None:
    """Nothing is held: no request, no block, no connection, no thread."""
    held: object = None
    for _ in range(600):
        lines = httpx.get(f"{url}/metrics", headers={"connection": "close"}).text.splitlines()
        gauges = ("num_requests_running{", "num_requests_waiting{", "kv_cache_usage_perc{")
        busy = [line for line in lines if any(name in line for name in gauges) and not line.endswith(" 0.0")]
        now = psutil.Process(process.pid)
        held = (busy, now.num_threads(), now.num_fds())
        if not busy and now.num_threads() <= before[0] and now.num_fds() <= before[1]:
            return
        time.sleep(0.1)
    raise AssertionError(f"{held} is held at rest, and {before} (threads, files) was before")


async def one_life(soak: Soak, process: "subprocess.Popen[str]", seconds: float, *, quiet_end: bool) -> None:
    """Clients for so long; then they stop before the server does, or the server under them."""
    soak.may_refuse = False
    stop = asyncio.Event()
    clients = asyncio.create_task(soak.until(stop))
    await asyncio.wait([clients], timeout=seconds)
    if not quiet_end:
        soak.may_refuse = True
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0
    stop.set()
    await clients


def live(model: Path, seconds: float, life_s: float, seed: int) -> Counter[str]:
    """Life after life of a server on one port. Raises AssertionError."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, begin, told = f"http://127.0.0.1:{port}", time.monotonic(), Counter[str]()
    right: dict[str, str] = {}
    while time.monotonic() - begin < seconds:
        with serve_process(model, "--port", str(port), "--num-kv-blocks", "512", "--dtype", "float32") as (_, process):
            for prompt in PROMPTS:
                asked = Soak(url, "tiny", right, seed)._body(prompt, False)
                text = httpx.post(f"{url}/v1/completions", json=asked, timeout=60).json()["choices"][0]["text"]
                assert right.setdefault(prompt, text) == text, "after a restart answers are the same"
            soak = Soak(url, "tiny", right, seed + told["restarts"])
            soak.run(40)  # starts every thread there will be
            rest = psutil.Process(process.pid)
            before = (rest.num_threads() + 1, rest.num_fds() + 2)
            asyncio.run(one_life(soak, process, life_s / 2, quiet_end=True))
            check_at_rest(url, process, before)
            asyncio.run(one_life(soak, process, life_s / 2, quiet_end=False))
        told += soak.outcomes
        told["restarts"] += 1
        print(f"{time.monotonic() - begin:.0f} s, {dict(told)}", flush=True)
    return told


def main() -> None:
    from tiny_llama import make_tiny_llama

    from minillm.model.checkpoints import resolve

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--life", type=float, default=120, help="seconds from start to SIGTERM")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        live(make_tiny_llama(Path(folder) / "tiny", resolve("smollm2-135m")), asked.seconds, asked.life, asked.seed)


if __name__ == "__main__":
    main()
