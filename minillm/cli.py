"""The `minillm` command. With `--json`, standard output is one JSON object; all else goes to standard error."""

import errno
import io
import json
import sys
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from minillm.core.errors import InvalidSamplingParamsError, MinillmError
from minillm.doctor.__main__ import main as examine_machine
from minillm.model.errors import UnknownModelError


def is_ours(error: Exception) -> bool:
    """Whether an error in an import is a mistake in minillm or the course, and not a package's."""
    if isinstance(error, ImportError) and error.name is not None:
        return error.name.partition(".")[0] in ("minillm", "course")
    if isinstance(error, SyntaxError) and error.filename is not None:
        place = error.filename
    else:
        place = traceback.extract_tb(error.__traceback__)[-1].filename
    return Path(place).is_relative_to(Path(__file__).parent)


try:
    import typer

    from minillm.bench.cli import bench_app
    from minillm.bench.options import DEFAULT_MODEL, Json, Sample, Set, check_writable, with_options
    from minillm.course_commands import add_course_commands
    from minillm.server.cli import ServeCommand, serve
except Exception as error:  # typer or pydantic is missing or broken: the doctor still answers, no other command can
    if sys.argv[1:2] == ["doctor"]:
        sys.exit(examine_machine("--json" in sys.argv))
    if is_ours(error):
        raise
    sys.exit(f"minillm: a package is missing or broken ({error}). `{sys.executable} -m minillm.doctor` looks further")

# Torch and transformers take seconds to import, so each command imports what it needs.
if TYPE_CHECKING:
    from minillm.core.params import SamplingParams
    from minillm.frontend.outputs import RequestOutput
    from minillm.policies.config import EngineConfig

app = typer.Typer(
    help="Serve a language model, and see where the time goes.",
    context_settings={"max_content_width": 120},
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(bench_app, name="bench")
app.command(cls=ServeCommand)(serve)
add_course_commands(app, "minillm")

MaxTokens = Annotated[int, typer.Option(help="Maximum number of output tokens.")]
Temperature = Annotated[float, typer.Option(help="0 = greedy: always the most likely token.")]


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the commands that generate text."""

    model: Annotated[str, typer.Option(help="Short name, local folder, GGUF file or Hub id.")] = DEFAULT_MODEL
    max_tokens: MaxTokens = 128
    temperature: Temperature = 0.0
    tensor_parallel_size: Annotated[int, typer.Option(help="GPUs (on a CPU: processes) that share each layer.")] = 1
    engine_fields: Set = None
    sampling_fields: Sample = None

    def validated(self) -> tuple["EngineConfig", "SamplingParams"]:
        """What they come to; `--set` and `--sample` win over named options.

        Raises:
            ConfigError, InvalidSamplingParamsError: a field is unknown, or out of range.
        """
        from minillm.frontend.structured_outputs import parse_sampling
        from minillm.policies.config import EngineConfig, parse_fields

        named_fields = {"model": self.model, "tensor_parallel_size": self.tensor_parallel_size}
        config = EngineConfig(**{**named_fields, **parse_fields(self.engine_fields, "--set")})
        named = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        return config, parse_sampling({**named, **parse_fields(self.sampling_fields, "--sample")})


@dataclass(frozen=True, slots=True)
class ChatSettings(Settings):
    """The options of `minillm chat`, with the defaults of a conversation."""

    max_tokens: MaxTokens = 512
    temperature: Temperature = 0.7


INTERRUPTED = 130
OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)


def main() -> None:
    """Entry point. What minillm raises on purpose is shown as one message, with exit status 2; so are a package that is
    missing, and a disk that is full or cannot be written. Ctrl-C is exit status 130, as with every other program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that isn't UTF-8 shows a "?" for what a model may write
    try:
        app()
    except MinillmError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(("minillm", "course")):
            raise
        _fail(f"this needs the package {error.name}: pip install -c constraints.txt {error.name}")
    except OSError as error:
        if error.errno not in OF_THE_DISK:
            raise
        _fail(f"{error}. Free some space, check the rights, or choose another folder")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            print("minillm: stopped by Ctrl-C", file=sys.stderr)
        raise


def _fail(message: str) -> NoReturn:
    print(f"minillm: {message}", file=sys.stderr)
    sys.exit(2)


@app.command()
def pull(
    model: Annotated[str, typer.Argument(help="Short name, GGUF file or Hub id.")] = DEFAULT_MODEL,
    force: Annotated[bool, typer.Option(help="Fetch it again, for example after a damaged download.")] = False,
    as_json: Json = False,
) -> None:
    """Fetch a model and convert it, once."""
    from minillm.model import pull as fetching
    from minillm.model.checkpoints import resolve

    if force and model not in fetching.EMBEDDED_MODELS:
        raise UnknownModelError(f"--force works for short names: {', '.join(fetching.EMBEDDED_MODELS)}")
    path = fetching.pull(model, force=True) if force else resolve(model)
    if as_json:
        print(json.dumps({"model": model, "path": str(path)}))
    else:
        print(path)


@app.command()
def doctor(as_json: Json = False) -> None:
    """What this machine can do, how fast, and how to get what's missing. Exit status 1 if minillm cannot work."""
    raise typer.Exit(examine_machine(as_json))


@app.command()
@with_options(Settings)
def generate(
    settings: Settings,
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT", help="One or more; they run together.")],
    chat_template: Annotated[bool, typer.Option("--chat", help="Wrap each prompt in the chat template.")] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the run as a trace; open it at https://ui.perfetto.dev.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Continue the prompts, then show how long each phase took. Exit status 1 if an output failed."""
    check_writable(trace)
    config, params = settings.validated()
    from minillm.frontend.llm import LLM
    from minillm.frontend.phases_shown import phase_line, show
    from minillm.frontend.terminal import safe_text
    from minillm.observe.speculation import SpeculationSummary
    from minillm.observe.trace import write_chrome_trace

    llm = LLM(**config.model_dump(exclude_unset=True))
    inputs = [[{"role": "user", "content": prompt}] for prompt in prompts] if chat_template else prompts
    outputs = llm.generate(inputs, params, use_tqdm=sys.stderr.isatty())
    if trace is not None:
        write_chrome_trace(trace, outputs, llm.engine.steps)
    if as_json:
        results = [output_as_dict(output) for output in outputs]
        report = {"config": config.model_dump(), "sampling": params.model_dump(), "outputs": results}
        if config.speculative is not None:
            report["speculation"] = SpeculationSummary.of_steps(llm.engine.steps).to_dict()
        print(json.dumps(report))
    else:
        for prompt, output in zip(prompts, outputs):
            for completion in output.completions:
                text = completion.text if chat_template else prompt + completion.text
                print(safe_text(text, sys.stdout), flush=True)
                show(phase_line(completion.timeline), sys.stderr)
                if completion.error is not None:
                    print(f"this output is not complete: {completion.error}", file=sys.stderr)
        if config.speculative is not None:
            print(SpeculationSummary.of_steps(llm.engine.steps), file=sys.stderr)
    failed = any(completion.error is not None for output in outputs for completion in output.completions)
    raise typer.Exit(1 if failed else 0)


@app.command()
@with_options(ChatSettings)
def chat(
    settings: ChatSettings,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="At the end, the whole conversation as one JSON object.")
    ] = False,
) -> None:
    """Chat with the model. Answers stream, and each ends with how long its phases took. Exit status 1 if one failed."""
    config, params = settings.validated()
    if params.n > 1:
        raise InvalidSamplingParamsError("a conversation goes on with one answer: leave n out, or use minillm generate")
    from minillm.frontend.chat import Chat
    from minillm.frontend.engine_thread import EngineThread

    with EngineThread(config) as engine:
        chat = Chat(engine, params, system, sys.stderr if as_json else sys.stdout)
        chat.talk()
    turns = [{"user": user, **output_as_dict(output)} for user, output in chat.turns]
    if as_json:
        print(json.dumps({"config": config.model_dump(), "sampling": params.model_dump(), "turns": turns}))
    raise typer.Exit(1 if any(turn["completions"][0]["error"] is not None for turn in turns) else 0)


def output_as_dict(output: "RequestOutput") -> dict[str, Any]:
    """A finished request, with its times in seconds, ready for JSON."""
    return {
        "request_id": output.request_id,
        "prompt": output.prompt,
        "num_prompt_tokens": len(output.prompt_token_ids),
        "num_cached_tokens": output.num_cached_tokens,
        "completions": [
            {
                **{name: getattr(completion, name) for name in ("text", "token_ids", "finish_reason", "error")},
                "logprobs": completion.logprobs and [asdict(logprob) for logprob in completion.logprobs],
                "phases": completion.timeline.phases(),
                **{name: getattr(completion.timeline, name) for name in ("e2e", "ttft", "tpot", "itl")},
            }
            for completion in output.completions
        ],
    }
