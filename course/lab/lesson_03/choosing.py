"""Which of a few endings does the model find likeliest after a prompt? The prompt is computed once."""

import torch
from torch import Tensor

from minillm.core.batch import ScheduledRequest
from minillm.core.block_pool import blocks_for
from minillm.core.params import SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import Timeline
from minillm.frontend.engine import Engine
from minillm.runner.batch_layout import upload


def choose(engine: Engine, prompt: str, endings: tuple[str, ...]) -> int:
    """The ending that is likeliest per token: its index.

    As minillm.bench.scoring.choose, but the endings share the prompt's keys and values.

    Args:
        engine: idle; what its KV pool held is overwritten.
    """
    beginning = engine.tokenizer.encode(prompt)
    after_prompt = _logits(engine, beginning, 0)[-1:]
    means = []
    for ending in endings:
        ids = engine.tokenizer.encode(ending)
        logits = after_prompt
        if len(ids) > 1:
            logits = torch.cat([after_prompt, _logits(engine, beginning + ids[:-1], len(beginning))])
        chosen = logits.float().log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids, device=logits.device)]
        means.append(chosen.mean().item())
    return max(range(len(endings)), key=means.__getitem__)


@torch.inference_mode()
def _logits(engine: Engine, token_ids: list[int], start: int) -> Tensor:
    """Logits after each token from `start` on; the keys and values of those before it are in the first blocks."""
    runner = engine.runner
    blocks = list(range(blocks_for(len(token_ids), runner.block_size)))
    request = Request("choose", token_ids, SamplingParams(), Timeline(0.0))
    scheduled = ScheduledRequest(request, start, len(token_ids) - start, blocks, True)
    arrays, metadata = upload(runner.prepare([scheduled]), runner.device)
    decoder, layers = runner.model.decoder, runner.kv_pool.layers
    return decoder(arrays.token_ids, arrays.positions, layers, runner.attention(metadata), runner.ops)
