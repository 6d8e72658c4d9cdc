"""A lesson's lab whose engine is a server of yours: `MINILLM_LAB_SERVER="http://127.0.0.1:8000?max_num_seqs=1"`.

Workloads, bets, pictures and findings are those of any lab. The server is seen from outside: what a client measures,
what an answer's `usage` says, and what /metrics counts. Whatever needs more raises a ServerLabError.

Nothing can be set from here. A run that needs a field, such as max_num_seqs=1, goes to the server whose address says
that it was started so; there may be several, with spaces between.
"""

import functools
import itertools
import json
import os
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, NoReturn
from urllib.parse import unquote

from course.lab import progress, waiting
from course.lab.errors import NotInThisLabError
from course.lab.growing import play_out
from course.lab.notes import NotHere
from course.lab.predict import PredictionBook
from course.lab.remote import RemoteLab, RemoteSession
from course.lab.run import Run
from course.lab.scale import scale_of
from course.lab.workloads import LabWorkload, workload
from course.loadgen.client import Api, Endpoint
from course.loadgen.errors import EndpointError
from minillm.core.errors import ConfigError
from minillm.model.checkpoints import SHAPES
from minillm.observe.records import RequestRecord
from minillm.policies.config import EngineConfig, parse_fields

VARIABLE = "MINILLM_LAB_SERVER"
PAGE_TIMEOUT_S = 30.0
OWN_AFFAIR = ("model", "dtype", "device", "async_scheduling")
"""Fields by which a lesson suits the lab's own engine, whatever it compares. A server has what it has."""
ON_ANYWHERE = {
    **{"enable_prefix_caching": True, "enable_chunked_prefill": True, "prefix_eviction": "lru"},
    **{"speculative": None, "quantization": None},
}
"""What vLLM, SGLang and minillm do unless they're told not to."""
FLAGS = {
    "max_num_seqs": "--max-num-seqs N in vLLM, --max-running-requests N in SGLang",
    "enable_prefix_caching": "--no-enable-prefix-caching in vLLM, --disable-radix-cache in SGLang",
    "long_prefill_token_threshold": "--long-prefill-token-threshold N in vLLM, --chunked-prefill-size N in SGLang",
    "quantization": "a checkpoint with fewer bits, or --quantization fp8 in vLLM and SGLang",
    "num_kv_blocks": "--num-gpu-blocks-override N in vLLM, --max-total-tokens in SGLang",
}
"""How to start the two others so; minillm serve has an option for each field, by its name."""


class ServerLabError(NotInThisLabError):
    """This lab's engine is a server elsewhere, and it isn't started so, or doesn't show it."""


def unseen(what: str) -> ServerLabError:
    """For what no client can learn."""
    return ServerLabError(
        f"{what} can't be had from outside, and this notebook runs on a server. Start the lab without {VARIABLE} to "
        "see it."
    )


@dataclass(frozen=True)
class KnownServer:
    """One server, and how its operator says it was started."""

    url: str
    """Without /v1."""
    fields: dict[str, Any] = field(default_factory=dict)
    """As EngineConfig calls them."""

    @classmethod
    def of(cls, spelt: str) -> "KnownServer":
        """From `http://127.0.0.1:8000?max_num_seqs=1&enable_prefix_caching=false`.

        Raises:
            ConfigError: it's no address, or a field is unknown or out of range.
        """
        url, _, said = spelt.partition("?")
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{VARIABLE} wants addresses such as http://127.0.0.1:8000?max_num_seqs=1; got {spelt!r}")
        fields = parse_fields([unquote(each) for each in said.split("&") if each], VARIABLE)
        checked = EngineConfig(**fields)
        return cls(url.rstrip("/").removesuffix("/v1"), {name: getattr(checked, name) for name in fields})

    def was_started_with(self, asked: dict[str, Any]) -> bool:
        said = {**ON_ANYWHERE, **self.fields}
        return all(name in said and said[name] == value for name, value in asked.items())


def spelt(value: Any) -> str:
    """A field's value as an address has it: JSON, and strings as they are."""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=lambda model: model.model_dump(exclude_unset=True))


def servers_of_environment() -> list[KnownServer]:
    """Those that MINILLM_LAB_SERVER names; none where it isn't set.

    Raises:
        ConfigError: it can't be read.
    """
    return [KnownServer.of(each) for each in os.environ.get(VARIABLE, "").split()]


class ServerTokenizer:
    """A server's tokenizer, by /tokenize and /detokenize: as much of one as workloads need."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._known: dict[str, list[int]] = {}
        """A notebook asks for the same texts again and again."""

    def encode(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = ask_json(self._endpoint, "/tokenize", {"prompt": text})["tokens"]
        return list(self._known[text])

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": self.encode(text)}

    def decode(self, token_ids: Sequence[int]) -> str:
        said = ask_json(self._endpoint, "/detokenize", {"tokens": list(token_ids)})
        return said["prompt"] if "prompt" in said else said["text"]  # vLLM's and ours; SGLang's


def ask_json(endpoint: Endpoint, path: str, body: dict[str, Any] | None = None) -> Any:
    """What a server answers to a small question: GET, or POST with a body.

    Raises:
        EndpointError: it doesn't answer.
        ServerLabError: it doesn't answer such questions.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(endpoint.url + path, data, endpoint.headers)
    try:
        with urllib.request.urlopen(request, timeout=PAGE_TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise ServerLabError(f"{endpoint.url}{path} answers {error.code}, and this cell needs it.") from None
    except OSError as error:
        raise EndpointError(f"{endpoint.url} does not answer: {error}") from None
    except ValueError:
        raise EndpointError(
            f"{endpoint.url}{path} answers with something else than JSON: is that a server's address?"
        ) from None


@dataclass(frozen=True)
class RecordFromOutside(RequestRecord):
    """One answer, of which a client has the text; and of its prompt the tokens, if it asks for them."""

    prompt: str | list[int]
    tokenizer: ServerTokenizer

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.tokenizer.encode(self.prompt) if isinstance(self.prompt, str) else self.prompt

    @property
    def token_ids(self) -> NoReturn:
        raise unseen("The token ids of an answer")


class LessonSession(RemoteSession):
    """A run whose inside no lesson reads as if it were empty."""

    tokenizer: ServerTokenizer

    def run(self) -> Run:
        """What has happened so far, with notes in place of what a client doesn't know."""
        run = super().run()
        steps, blocks = NotHere(unseen("The engine's steps")), NotHere(unseen("KV blocks"))
        seen = replace(
            run.snapshot,
            steps=steps,
            block_owners=blocks,
            block_size=run.snapshot.block_size or NotHere(unseen("The size of a KV block")),
            num_recomputed_tokens=NotHere(unseen("Recomputed tokens")),
        )
        outputs = tuple(map(self._record, run.outputs))
        return replace(run, steps=steps, snapshot=seen, fullest=seen, outputs=outputs)

    def _record(self, record: RequestRecord) -> RecordFromOutside:
        own = [getattr(record, each.name) for each in fields(RequestRecord)]
        return RecordFromOutside(*own, self.workload.arrivals[int(record.request_id)].prompt, self.tokenizer)


class OneServer(RemoteLab):
    """One of the servers."""

    @functools.cached_property
    def tokenizer(self) -> ServerTokenizer:
        return ServerTokenizer(self.endpoint)

    def _session_of(self, traffic: LabWorkload, config: EngineConfig) -> LessonSession:
        session = LessonSession(self.endpoint, config, traffic, self.timeout_s)
        session.tokenizer = self.tokenizer
        return session


def behind(line: str, traffic: LabWorkload) -> LabWorkload:
    """The workload, its texts behind a first line. Token ids stay: where lengths are exact, nothing is cached."""
    arrivals = tuple(
        replace(each, prompt=line + each.prompt) if isinstance(each.prompt, str) else each for each in traffic.arrivals
    )
    return replace(traffic, arrivals=arrivals)


class ServerLab(PredictionBook):
    """Plays lessons to servers that are up. Has what Lab has, as far as that can be had over HTTP.

    Args:
        servers: at least one. The first is asked for its model and its tokenizer.
        short: play small workloads; None = the environment variable MINILLM_SHORT is 1.
        instead_of: the notebook's lab before; its predictions go on.
    Raises:
        EndpointError: the first doesn't answer.
    """

    is_remote = True
    simulated = None
    """There is no simulated device in it."""

    def __init__(
        self, servers: Sequence[KnownServer], *, short: bool | None = None, instead_of: PredictionBook | None = None
    ) -> None:
        super().__init__(instead_of)
        self.servers = list(servers)
        self.scale = scale_of(short)
        self._labs = {server.url: OneServer(server.url, api=Api.COMPLETIONS, short=short) for server in servers}
        first = self._labs[self.servers[0].url].endpoint
        models = ask_json(first, "/v1/models").get("data")
        if not models:
            raise EndpointError(f"{first.url}/v1/models names no model")
        listed = models[0]
        self.endpoint = replace(first, model=listed["id"])
        self._window: int | None = listed.get("max_model_len")
        self._numbers = itertools.count(secrets.randbelow(10_000))
        progress.note_opened()

    def __getattr__(self, name: str) -> NoReturn:
        """Whatever else a lab has, other lessons ask for."""
        if name.startswith("_"):  # asked by libraries that look what it is
            raise AttributeError(name)
        raise unseen(f"lab.{name}")

    def __repr__(self) -> str:
        return f"ServerLab({self.endpoint.model} at {', '.join(server.url for server in self.servers)})"

    def config(self, **fields: Any) -> EngineConfig:
        """What a run needs of a server.

        Raises:
            ConfigError: a field is unknown or out of range.
        """
        return EngineConfig(**{"model": self.endpoint.model, **fields})

    @property
    def shape_name(self) -> str:
        """What the shape of its model is called: MINILLM_LAB_MODEL, or the beginning of the model's own name.

        Raises:
            ServerLabError: neither is known.
        """
        name = os.environ.get("MINILLM_LAB_MODEL") or self.endpoint.model.rpartition("/")[2].lower()
        while name and name not in SHAPES:  # llama-3.1-8b-instruct
            name = name.rpartition("-")[0]
        if not name:
            raise ServerLabError(
                f"The shape of {self.endpoint.model} isn't known here. MINILLM_LAB_MODEL=llama-3.1-8b says that it's "
                "like that one."
            )
        return name

    def room(self, **sizes: Any) -> dict[str, Any]:
        """Nothing: a server has its own sizes."""
        return {}

    @property
    def window(self) -> int:
        """Longest prompt and answer, tokens.

        Raises:
            ServerLabError: the server doesn't say.
        """
        if self._window is None:
            raise unseen("The longest prompt that this server takes")
        return self._window

    def workload(self, name: str | LabWorkload, seed: int = 0) -> LabWorkload:
        """A named workload at this lab's scale; a LabWorkload is passed through."""
        return name if isinstance(name, LabWorkload) else workload(name, seed, self.scale)

    def run(self, name: str | LabWorkload, *, seed: int = 0, **fields: Any) -> Run:
        """Play a workload to the server that was started with these fields, wait for its end, and return what happened.

        Raises:
            ServerLabError: none was.
            EndpointError: it doesn't answer, or refuses all.
        """
        traffic = self.workload(name, seed)
        waiting.say_run(traffic.name, is_loading=False)
        session = self.start(traffic, self.config(**fields))
        outside = functools.partial(RemoteSession.run, session)  # without notes: a picture leaves out what isn't known
        try:
            play_out(session, traffic, lambda: None, outside)
        except KeyboardInterrupt:  # the square button above the notebook
            session.stop()
            session.join()
            raise waiting.Stopped("Stopped; the run is discarded.") from None
        waiting.say(waiting.RUNNING)
        run = session.run()
        refusals = [row.refused for row in run.rows if row.refused]
        if len(refusals) == len(run.rows):
            raise EndpointError(f"no request was answered; the first: {refusals[0]}")
        return run

    def start(self, traffic: LabWorkload, config: EngineConfig, *, is_watched: bool = True) -> RemoteSession:
        """Begin a run. A second run on the same server waits until the first has ended.

        Raises:
            ServerLabError: no server was started with what the configuration states, or the prompts are conversations.
        """
        if any(isinstance(part, dict) for arrival in traffic.arrivals for part in arrival.prompt):
            raise ServerLabError("This workload sends whole conversations, which a lab on a server doesn't play yet.")
        return self._labs[self.server_with(config).url].start(behind(self.new_line(), traffic), config)

    def new_line(self) -> str:
        """A first line for the prompts of one run: a server's prefix cache outlives a run, and each run of a lab starts
        with an empty one. It's short, so that prompts which differ right after it have no KV block in common."""
        return f"{next(self._numbers) % 10_000:04}\n"

    def server_with(self, config: EngineConfig) -> KnownServer:
        """The server that was started so; of several the one that says least of itself.

        Raises:
            ServerLabError: there is none.
        """
        asked = {name: getattr(config, name) for name in config.model_fields_set if name not in OWN_AFFAIR}
        fit = [server for server in self.servers if server.was_started_with(asked)]
        if not fit:
            usual = {name for name, value in asked.items() if name in ON_ANYWHERE and ON_ANYWHERE[name] == value}
            needed = {name: asked[name] for name in sorted(asked.keys() - usual)}
            said = "&".join(f"{name}={spelt(value)}" for name, value in needed.items())
            how = "; ".join(f"{name}: {FLAGS[name]}" for name in needed if name in FLAGS)
            raise ServerLabError(
                f"This run needs a server with {said.replace('&', ', ')}, and {VARIABLE} names none. Start one"
                f"{f' ({how})' if how else ''}, add http://HOST:PORT?{said} to {VARIABLE}, and begin with the first "
                "cell again."
            )
        return min(fit, key=lambda server: len(server.fields))

    @functools.cached_property
    def tokenizer(self) -> ServerTokenizer:
        """The first server's."""
        return ServerTokenizer(self.endpoint)

    @property
    def model(self) -> NoReturn:
        raise unseen("The model's weights and vocabulary")

    def needs_model(self, what: str) -> NoReturn:
        """Raise ServerLabError: `what` takes a model in this process."""
        raise unseen(what)

    def engine(self, **fields: Any) -> NoReturn:
        raise unseen("An engine without traffic")

    next_engine = engine

    def serving_thread(self, config: EngineConfig) -> NoReturn:
        raise unseen("Serving with other fields")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nothing of this process computes."""
        yield

    def close(self) -> None:
        """Nothing is held: the servers go on."""
