"""What `minillm simulate` and `minillm calibrate` are both told: a model, a placement, the sizes of a server."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

Shape = Annotated[str, typer.Option(help="A shape such as llama-3.1-8b, a config.json or a model folder.")]
HardwareName = Annotated[str | None, typer.Option(help="A GPU such as h100-sxm, or a .json file with its peaks.")]
TensorParallel = Annotated[int, typer.Option("--tp", min=1, help="Tensor parallel degree.")]
KVBlocks = Annotated[int | None, typer.Option(min=1, help="KV blocks; default: what the memory holds.")]
BlockSize = Annotated[int | None, typer.Option(min=1, help="Tokens per KV block; default 16.")]
Seats = Annotated[int | None, typer.Option(min=1, help="Requests that run at once; default 256.")]
Budget = Annotated[int | None, typer.Option(min=1, help="Token budget of a step; default 2048.")]
Window = Annotated[int | None, typer.Option(min=2, help="Longest prompt and output together; default: the model's.")]
ReserveFullISL = Annotated[
    bool | None,
    typer.Option(help="Admit a prompt only if all of it has free blocks, as vLLM; default: as the log says, or no."),
]
NullBlock = Annotated[
    bool | None,
    typer.Option(help="One of the KV blocks is nobody's, as in vLLM's own count; default: as the log says, or no."),
]
Dtype = Annotated[str, typer.Option(help="bfloat16, float16, float32, fp8, int8 or int4.")]
Speculative = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD=VALUE",
        help="Of SpeculativeConfig, e.g. method=synthetic, acceptance_rate=0.8, k=4; may be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
LOG_HELP = (
    "A log: JSON lines with input_toks, output_toks, queued_ts. A meta.json beside it fills in what is not given."
)


def engine_fields(
    log: Path | None,
    kv_blocks: int | None,
    block_size: int | None,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    max_model_len: int | None,
    reserve_full_isl: bool | None,
    null_block: bool | None,
) -> dict[str, Any]:
    """The sizes and habits of a server, as `Deployment.of` takes them, that were given, or that the log's meta.json
    states."""
    from minillm.simulate.requests_log import longest_request, read_server_facts

    given = {
        "num_kv_blocks": kv_blocks,
        "block_size": block_size,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_model_len": max_model_len,
        "scheduler_reserve_full_isl": reserve_full_isl,
        "null_block": null_block,
    }
    if log is not None:
        facts = asdict(read_server_facts(log))
        given = {name: facts.get(name) if value is None else value for name, value in given.items()}
        if given["max_model_len"] is None:
            given["max_model_len"] = longest_request(log)  # the server did serve it
    return {name: value for name, value in given.items() if value is not None}
