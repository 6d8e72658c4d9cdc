"""From logits to the next token: penalties, temperature, top-k, top-p, min-p, and one draw.

The order is penalties, temperature, top-k, top-p, min-p: Hugging Face's, so that equal settings mean
an equal distribution. It matters twice: temperature comes before top-p because it decides how many
tokens hold the mass, and top-p counts the mass that top-k left over. min-p compares each token with
the likeliest one, which no other filter changes, so its place among the three is free.

Two ideas keep it short and exact:

- All three filters keep "the n likeliest tokens", so each row needs one number n, found in its
  largest logits alone. Equal logits (common in bfloat16) are ranked by token id.
- The random number is a hash of (request seed, output position). Nothing is carried from step to
  step, so neighbours in the batch, row order and preemption cannot change a request's output.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minillm.request import Request, SamplingParams, TokenLogprob

FIRST_PREFIX = 256
"""Largest logits sorted at first. A nucleus is rarely wider; where it is, more are sorted."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One token per row of logits."""

    token_ids: list[int | None]
    """None where the row could not be sampled; `errors` says why."""
    logprobs: list[TokenLogprob | None]
    """Of the model's own distribution, before penalties and temperature, for rows that asked for them."""
    errors: dict[str, str] = field(default_factory=dict)
    """What was wrong, by request id. The engine fails these requests and no other."""


class Sampler:
    """Chooses the next token of every request in a batch."""

    def __call__(self, logits: Tensor, requests: Sequence[Request]) -> SampledTokens:
        """Sample one token per row.

        Args:
            logits: [R, V], any float dtype; left unchanged.
            requests: R of them; row r belongs to requests[r].
        Raises:
            ValueError: there are not as many requests as rows.
        """
        if len(requests) != logits.shape[0]:
            raise ValueError(f"{logits.shape[0]} rows of logits for {len(requests)} requests")
        # An all-greedy batch is done after this one pass. max() gives the largest logit along with its
        # token, and hands NaN on, so the check for a broken row costs nothing.
        largest, token = logits.max(dim=-1)
        token_ids: list[int | None] = token.tolist()
        errors = {}
        for row, value in enumerate(largest.tolist()):
            if not math.isfinite(value):
                token_ids[row] = None
                errors[requests[row].request_id] = (
                    f"the model's largest logit is {value}: check the checkpoint, or try dtype='float32'"
                )

        usable = [row for row, token_id in enumerate(token_ids) if token_id is not None]
        touched = [row for row in usable if requests[row].params.temperature > 0 or _has_penalty(requests[row].params)]
        if touched:
            chosen = _choose(logits[touched].float(), [requests[row] for row in touched])
            for row, token_id in zip(touched, chosen):
                token_ids[row] = token_id

        logprobs: list[TokenLogprob | None] = [None] * len(requests)
        reported = [row for row in usable if requests[row].params.logprobs is not None]
        if reported:
            counts = [requests[row].params.logprobs for row in reported]
            found = report_logprobs(logits[reported].float(), [token_ids[row] for row in reported], counts)
            for row, logprob in zip(reported, found):
                logprobs[row] = logprob
        return SampledTokens(token_ids, logprobs, errors)


def _choose(logits: Tensor, requests: Sequence[Request]) -> list[int]:
    """Token ids for rows that are random or have penalties. `logits` [R, V] float32 is overwritten."""
    apply_penalties(logits, requests)
    greedy, plain, filtered = [], [], []
    for row, request in enumerate(requests):
        group = greedy if request.params.temperature == 0 else filtered if _has_filter(request.params) else plain
        group.append(row)

    token_ids = torch.empty(len(requests), dtype=torch.int64, device=logits.device)
    if greedy:
        token_ids[greedy] = logits[greedy].argmax(dim=-1)
    for rows, draw in ((plain, _draw_plain), (filtered, _draw_filtered)):  # plain rows are never sorted
        if rows:
            params = [requests[row].params for row in rows]
            uniforms = [uniform(requests[row].seed, requests[row].num_output_tokens) for row in rows]
            scaled = apply_temperature(logits[rows], [p.temperature for p in params])
            token_ids[rows] = draw(scaled, params, torch.tensor(uniforms, dtype=torch.float64, device=logits.device))
    return token_ids.tolist()


def _has_penalty(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0


def _has_filter(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on (seed, position) and on nothing else.

    A cryptographic hash used as a counter-based generator (Salmon et al., "Parallel random numbers:
    as easy as 1, 2, 3", 2011): its output is as good as random for any pattern of inputs, and one
    call takes about a microsecond, where drawing noise for V tokens would cost V draws.
    """
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 12) * 2.0**-52


def apply_penalties(logits: Tensor, requests: Sequence[Request]) -> None:
    """Each request's penalties, in place on its row of logits [R, V].

    - repetition (CTRL, Keskar et al. 2019, as in Hugging Face): a token seen in prompt or output has
      its logit divided by the penalty if positive, multiplied if negative.
    - frequency and presence (OpenAI's API): subtracted per occurrence in the output, and once for a
      token that occurs there at all. The prompt does not count.
    """
    seen = []  # only these logits change: (row, token, times in the output, the three penalties)
    for row, request in enumerate(requests):
        p = request.params
        if _has_penalty(p):
            counts = Counter(request.output_token_ids)
            penalties = (p.repetition_penalty, p.presence_penalty, p.frequency_penalty)
            seen += [(row, token, counts[token], *penalties) for token in counts.keys() | request.prompt_token_ids]
    if not seen:
        return

    columns = torch.tensor(seen, dtype=torch.float64, device=logits.device).T
    row, token = columns[:2].long()
    count, repetition, presence, frequency = columns[2:]
    value = logits[row, token].double()
    value = torch.where(value > 0, value / repetition, value * repetition)
    value -= frequency * count + presence * (count > 0)
    limits = torch.finfo(logits.dtype)
    logits[row, token] = value.clamp(limits.min, limits.max).to(logits.dtype)  # an extreme penalty stays finite


def apply_temperature(logits: Tensor, temperatures: Sequence[float]) -> Tensor:
    """Logits [R, V] less their maximum (now 0), over the temperature: no temperature can overflow."""
    limits = torch.finfo(logits.dtype)
    divisor = torch.tensor(temperatures, dtype=torch.float64, device=logits.device).clamp(limits.tiny, limits.max)
    return (logits - logits.amax(dim=-1, keepdim=True)).div_(divisor.to(logits.dtype)[:, None])


def pick(cumulative: Tensor, total: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse transform sampling: [R] the first index whose cumulative weight [R, K] exceeds u * total [R]."""
    target = (uniforms * total).to(cumulative.dtype)
    # Rounding can lift u * total to total itself, where there is no index left to find.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]


def _draw_plain(scaled: Tensor, params: Sequence[SamplingParams], uniforms: Tensor) -> Tensor:
    """[R] tokens drawn from softmax(scaled) with one uniform number [R] each."""
    cumulative = scaled.exp().cumsum(dim=-1)
    return pick(cumulative, cumulative[:, -1], uniforms)


def _draw_filtered(scaled: Tensor, params: Sequence[SamplingParams], uniforms: Tensor) -> Tensor:
    """[R] tokens drawn from the n likeliest of each row: first a rank, then the token that has it."""
    vocab_size = scaled.shape[1]
    total = scaled.exp().sum(dim=-1, dtype=torch.float64)
    width = max(FIRST_PREFIX, *(p.top_k for p in params))
    while True:
        values = scaled.topk(min(width, vocab_size)).values  # sorted, largest first
        cumulative = values.double().exp().cumsum(dim=-1)
        kept = count_kept(values, cumulative, total, params)
        # Where the whole prefix is kept, the border may lie beyond it: look further.
        if width >= vocab_size or int(kept.max()) < width:
            break
        width *= 8
    mass = cumulative.gather(1, kept[:, None] - 1)[:, 0]
    rank = pick(cumulative, mass, uniforms)

    # The token of that rank: of all tokens with this logit, in order of id, skip as many as are ranked before it.
    value = values.gather(1, rank[:, None])
    skip = rank - (values > value).sum(dim=-1)
    occurrence = (scaled == value).cumsum(dim=-1, dtype=torch.int32)
    return torch.searchsorted(occurrence, (skip + 1).to(torch.int32)[:, None])[:, 0]


def count_kept(values: Tensor, cumulative: Tensor, total: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """[R] how many of the likeliest tokens top-k, top-p and min-p leave; at least 1.

    Args:
        values: [R, K] the K largest scaled logits, largest (0) first.
        cumulative: [R, K] running sum of exp(values), float64.
        total: [R] sum of exp over the whole vocabulary, float64.
    """
    num_values = values.shape[1]

    def per_row(numbers: list[float]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float64, device=values.device)[:, None]

    k = torch.tensor([p.top_k or num_values for p in params], device=values.device).clamp(max=num_values)[:, None]
    limited = torch.tensor([p.top_k > 0 for p in params], device=values.device)[:, None]
    mass = torch.where(limited, cumulative.gather(1, k - 1), total[:, None])  # what top-p is a share of
    top_p = per_row([p.top_p if p.top_p < 1 else math.inf for p in params])
    log_min_p = per_row([math.log(p.min_p) if p.min_p > 0 else -math.inf for p in params])

    in_top_k = torch.arange(num_values, device=values.device) < k
    # A token is kept while those before it have not reached the mass: the smallest set that does.
    in_top_p = cumulative - values.double().exp() < top_p * mass
    in_min_p = values.double() >= log_min_p
    return (in_top_k & in_top_p & in_min_p).sum(dim=-1).clamp(min=1)


def report_logprobs(logits: Tensor, token_ids: Sequence[int], counts: Sequence[int]) -> list[TokenLogprob]:
    """Natural log-probabilities under softmax(logits), [R, V]: the chosen token's, and the `counts` likeliest."""
    normalizer = logits.logsumexp(dim=-1, keepdim=True)
    index = torch.tensor(token_ids, device=logits.device)[:, None]
    chosen = (logits.gather(1, index) - normalizer)[:, 0].tolist()
    best = logits.topk(min(max(counts), logits.shape[1]))
    best_logprobs, best_ids = (best.values - normalizer).tolist(), best.indices.tolist()
    return [
        TokenLogprob(token_ids[row], chosen[row], dict(zip(best_ids[row][:count], best_logprobs[row][:count])))
        for row, count in enumerate(counts)
    ]
