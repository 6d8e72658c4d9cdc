"""Made-up rows of measurements."""

import csv
from collections.abc import Iterable
from pathlib import Path

from course.simulator.accuracy.points import Point, read_points

SERVER = ("batch_size", "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
POOL = ("num_workers", *SERVER)
COLUMNS = (
    *("id", "backend", "backend_version", "model_path", "system", "precision", "mode", "isl", "osl"),
    *SERVER,
    *(f"prefill_{name}" for name in POOL),
    *(f"decode_{name}" for name in POOL),
    *("silicon_ttft_ms", "silicon_tpot_ms", "concurrency", "measured"),
)
DENSE = {
    "id": "llama_h100_c8_tp1_epnone_1",
    "backend": "vllm",
    "backend_version": "0.19.0",
    "model_path": "meta-llama/Llama-3.1-8B-Instruct",
    "system": "h100_sxm",
    "mode": "agg",
    "isl": 512,
    "osl": 64,
    "tp_size": 1,
    "moe_tp_size": 1,
    "moe_ep_size": 1,
    "concurrency": 8,
    "silicon_ttft_ms": 50,
    "silicon_tpot_ms": 7,
}
MIXTURE = {
    **DENSE,
    "id": "minimax_b200_c4_tp2_ep2_1",
    "model_path": "MiniMaxAI/MiniMax-M2.5",
    "system": "b200_sxm",
    "precision": "fp8",
    "isl": 1024,
    "osl": 1024,
    "tp_size": 2,
    "moe_tp_size": 2,
    "attention_dp_size": 1,
    "measured": "2026-04-17",
}
POOLS = {
    **MIXTURE,
    "id": "dsv3_gb200_disagg_cfg1",
    "backend": "trtllm",
    "model_path": "deepseek-ai/DeepSeek-V3",
    "system": "gb200",
    "precision": "fp4",
    "mode": "disagg",
    **dict.fromkeys(SERVER, ""),
    **{"prefill_num_workers": 1, "prefill_tp_size": 1, "prefill_attention_dp_size": 4, "prefill_moe_ep_size": 4},
    **{"decode_num_workers": 2, "decode_tp_size": 4, "decode_attention_dp_size": 1, "decode_moe_ep_size": 4},
    "concurrency": 7,
}


def write_points(path: Path, rows: Iterable[dict]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def points_of(folder: Path, *rows: dict) -> list[Point]:
    return read_points(write_points(folder / "points.csv", rows))
