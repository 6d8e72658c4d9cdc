"""Clients of others, unchanged, against `minillm serve`: each in an environment of its own, from PyPI.

    python tests/engine/server/other_clients.py                    # all; some minutes, and gigabytes to fetch
    python tests/engine/server/other_clients.py --only openai --environments ~/client-environments

Prints the table of docs/server.md. The model has random weights and a chat template with tools: what is tried is the
protocol, and that answers which must follow a schema do.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "engine")]
from server.running import TOOLS_TEMPLATE, serve_process  # noqa: E402

SETTING = """
import os
from typing import Literal
from pydantic import BaseModel
URL, MODEL = os.environ["CLIENT_URL"], os.environ["CLIENT_MODEL"]
CHAT = [{"role": "user", "content": "Where is it warm?"}]
class Place(BaseModel, extra="forbid"):  # else random weights write other fields until the window is full
    city: Literal["Oslo", "Rome"]
"""


class Client(NamedTuple):
    requirement: str
    tried: str
    code: str = ""
    """Python, after SETTING; any exception is a failure."""
    command: str = ""
    """Or a command of the environment, with {url}, {model}, {tokenizer} and {folder}."""


CLIENTS = {
    "openai": Client(
        "openai",
        "chat, completions, responses, streams, tools, `parse`",
        """
from openai import OpenAI
client = OpenAI(base_url=URL, api_key="none", max_retries=0)
assert client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=8).choices[0].message.content
assert len(list(client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=8, stream=True))) > 1
assert client.completions.create(model=MODEL, prompt="x", max_tokens=8).usage.completion_tokens
assert client.responses.create(model=MODEL, input="x", max_output_tokens=8).output_text
with client.responses.stream(model=MODEL, input="x", text_format=Place) as stream:
    assert stream.get_final_response().output_parsed.city
parsed = client.chat.completions.parse(model=MODEL, messages=CHAT, response_format=Place)
assert parsed.choices[0].message.parsed.city
assert client.responses.parse(model=MODEL, input="x", text_format=Place).output_parsed.city
tool = {"type": "function", "function": {"name": "visit", "parameters": Place.model_json_schema()}}
called = client.chat.completions.create(model=MODEL, messages=CHAT, tools=[tool], tool_choice="required")
assert Place.model_validate_json(called.choices[0].message.tool_calls[0].function.arguments)
""",
    ),
    "openai, async": Client(
        "openai",
        "32 streams at once",
        """
import asyncio
from openai import AsyncOpenAI
async def one(client):
    stream = await client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=8, stream=True)
    return [chunk async for chunk in stream]
async def main():
    async with AsyncOpenAI(base_url=URL, api_key="none", max_retries=0) as client:
        assert all(await asyncio.gather(*(one(client) for _ in range(32))))
asyncio.run(main())
""",
    ),
    "litellm": Client(
        "litellm",
        "chat, stream, tools, a schema",
        """
import litellm
asked = dict(model=f"openai/{MODEL}", api_base=URL, api_key="none", messages=CHAT, num_retries=0)
assert litellm.completion(**asked, max_tokens=8).choices[0].message.content
assert len(list(litellm.completion(**asked, max_tokens=8, stream=True))) > 1
form = {"type": "json_schema", "json_schema": {"name": "place", "schema": Place.model_json_schema()}}
assert Place.model_validate_json(litellm.completion(**asked, response_format=form).choices[0].message.content)
tool = {"type": "function", "function": {"name": "visit", "parameters": Place.model_json_schema()}}
assert litellm.completion(**asked, tools=[tool], tool_choice="required").choices[0].message.tool_calls
""",
    ),
    "langchain-openai": Client(
        "langchain-openai",
        "`invoke`, `stream`, `bind_tools`, `with_structured_output`",
        """
from langchain_openai import ChatOpenAI
chat = ChatOpenAI(model=MODEL, base_url=URL, api_key="none", max_retries=0)
assert chat.invoke("Where is it warm?", max_tokens=8).content
assert len(list(chat.stream("Where is it warm?", max_tokens=8))) > 1
assert chat.bind_tools([Place], tool_choice="any").invoke("x").tool_calls
assert chat.with_structured_output(Place).invoke("x").city
""",
    ),
    "instructor": Client(
        "instructor",
        "`response_model` by tools, and by a schema",
        """
import instructor
from openai import OpenAI
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(OpenAI(base_url=URL, api_key="none", max_retries=0), mode=mode)
    assert client.chat.completions.create(model=MODEL, messages=CHAT, response_model=Place, max_retries=1).city
""",
    ),
    "pydantic-ai": Client(
        "pydantic-ai-slim[openai]",
        "text, stream, `output_type` by tools, and by a schema",
        """
import asyncio
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key="none"))
short = {"max_tokens": 60}
assert Agent(model, model_settings=short).run_sync("x").output
for output_type in (Place, NativeOutput(Place)):
    assert Agent(model, output_type=output_type).run_sync("x").output.city
async def main():
    async with Agent(model, model_settings=short).run_stream("x") as streamed:
        assert [text async for text in streamed.stream_text()]
asyncio.run(main())
""",
    ),
    "guidellm": Client(
        "guidellm",
        "`run`, synthetic prompts, one after another",
        command="guidellm run --backend kind=openai_http,target={root},model={model} --profile kind=synchronous "
        "--constraint kind=max_requests,count=4 --tokenizer kind=hf_auto,model={tokenizer} "
        "--data kind=synthetic_text,prompt_tokens=32,output_tokens=8 --output kind=json,path={folder}/report.json",
    ),
    "aiperf": Client(
        "aiperf",
        "`profile`, chat, streaming",
        command="aiperf profile --model {model} --url {root} --endpoint-type chat --streaming --tokenizer {tokenizer} "
        "--concurrency 2 --request-count 8 --isl 32 --osl 8 --extra-inputs ignore_eos:true --ui none "
        "--artifact-dir {folder}",
    ),
    "lm-eval": Client(
        "lm-eval[api]",
        "a `generate_until` task, `local-chat-completions` (log-likelihoods need `echo`, which is a 400)",
        command="lm_eval run --model local-chat-completions --apply_chat_template --tasks warm --include_path {folder} "
        "--model_args model={model},base_url={url}/chat/completions,num_concurrent=4,max_retries=1 "
        "--output_path {folder}",
    ),
}
TASK = """task: warm
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n\\n"], max_gen_toks: 8, do_sample: false}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


def make_model(folder: Path) -> Path:
    """A tiny Llama whose chat template has tools."""
    from tiny_llama import make_tiny_llama

    from minillm.model.checkpoints import resolve

    path = make_tiny_llama(folder / "tiny", resolve("smollm2-135m"))
    (path / "chat_template.jinja").write_text(TOOLS_TEMPLATE)
    return path


def try_one(name: str, client: Client, environments: Path, url: str, model: Path) -> tuple[str, str]:
    """Its version, and how it went."""
    home = environments / client.requirement.partition("[")[0]
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
        installed = subprocess.run([python, "-m", "pip", "install", "-q", client.requirement], capture_output=True)
        if installed.returncode:
            return "–", "not installed: " + installed.stderr.decode().strip().splitlines()[-1][:100]
    asked = f"from importlib.metadata import version; print(version({client.requirement.partition('[')[0]!r}))"
    version = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data.jsonl").write_text('{"question": "Where is it warm?", "answer": "Rome"}\n' * 4)
        (Path(folder) / "warm.yaml").write_text(TASK.format(data=f"{folder}/data.jsonl"))
        told = {"url": url, "root": url.removesuffix("/v1"), "model": "tiny", "tokenizer": model, "folder": folder}
        command = [str(python), "-c", SETTING + client.code]
        if client.command:
            command = shlex.split(client.command.format(**told))
            command[0] = str(home / "bin" / command[0])
        environment = {
            **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            **{"CLIENT_URL": url, "CLIENT_MODEL": "tiny", "OPENAI_API_KEY": "none"},
        }
        try:
            ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, cwd=folder)
        except subprocess.TimeoutExpired:
            return version, "did not end within 400 s"
    if ended.returncode == 0:
        return version, "works"
    said = ended.stdout + ended.stderr
    print(name, said[-3000:], file=sys.stderr)
    return version, "fails: " + (said.strip() or "?").splitlines()[-1][:100]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(CLIENTS))
    parser.add_argument("--environments", type=Path, default=Path(tempfile.gettempdir()) / "client-environments")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder))
        with serve_process(model, "--num-kv-blocks", "512") as (url, _):
            print("| client | version | tried | |\n|---|---|---|---|")
            for name in chosen.only:
                version, result = try_one(name, CLIENTS[name], chosen.environments, f"{url}/v1", model)
                print(f"| {name} | {version} | {CLIENTS[name].tried} | {result} |", flush=True)


if __name__ == "__main__":
    main()
