"""From logits to the next token: penalties, temperature, top-k, top-p, min-p, and one draw.

The order is penalties, temperature, top-k, top-p, min-p: Hugging Face's, so that equal settings mean
an equal distribution. It matters twice: temperature comes before top-p because it decides how many
tokens hold the mass, and top-p counts the mass that top-k left over. min-p compares each token with
the likeliest one, which no other filter changes, so its place among the three is free.

Two ideas keep it short and exact:

- All three filters keep "the n likeliest tokens", so each row needs one number n, found in its
  largest logits alone. Equal logits (common in bfloat16) are ranked by token id.
- The random number is a hash of (request seed, output position). Nothing is carried from step to
  step, so neighbours in the batch, row order and preemption cannot change a request's output. (Drafts that were
  drawn can: see rejection_sampler.py.)
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minillm.core.params import SamplingParams
from minillm.core.request import TokenLogprob
from minillm.host.device import HostCopy, to_device
from minillm.kernels.ops import Ops
from minillm.kernels.select_ops import select_draw_wide
from minillm.runner.draws import uniform
from minillm.runner.grammar_masks import grammar_error
from minillm.runner.rows import Row, places_sampled

FIRST_PREFIX = 256
"""Largest logits sorted at first. A nucleus is rarely wider; where it is, more are sorted."""
NO_TOP_K = 2**31 - 1
"""No vocabulary is as large. A larger top_k means the same, and would overflow where it becomes an index."""
RULED_OUT = torch.finfo(torch.float32).min
"""The logit of a token that may not come yet. It's finite: where a grammar leaves nothing else, it comes."""
UNSAMPLED = "the model's logits are NaN or infinite: check the checkpoint, or try dtype='float32'"


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One token per row of logits."""

    token_ids: list[int] = field(default_factory=list)
    """-1 where the row could not be sampled; `errors` says why."""
    logprobs: list[TokenLogprob | None] = field(default_factory=list)
    """Log-probabilities by the model's own distribution, before penalties and temperature; None if not asked for."""
    errors: dict[str, str] = field(default_factory=dict)
    """What was wrong, by request id. The engine fails these requests and no other."""


class SampleInFlight:
    """Samples that a GPU may still be computing, and on their way to the host."""

    def __init__(
        self, rows: Sequence[Row], token_ids: Tensor, reported: Mapping[int, int], logprobs: Tensor | None
    ) -> None:
        self.rows = rows
        self.reported = reported
        """Log-probabilities to report, by the index of their row."""
        self.token_ids = token_ids
        """[R] int64 on the device; -1 where the row's logits are not finite"""
        # One copy brings everything over. Token ids are far below 2^53, so float64 holds them exactly.
        columns = token_ids[:, None]
        self.copy = HostCopy(columns if logprobs is None else torch.cat((columns, logprobs), dim=1))

    def wait(self) -> SampledTokens:
        """The samples, on the host."""
        table = self.copy.wait()
        token_ids = table[:, 0].long().tolist()
        sampled = SampledTokens(token_ids, [None] * len(token_ids))
        for i, count in self.reported.items():
            sampled.logprobs[i] = as_logprob(token_ids[i], table[i, 1:].tolist(), count)
        for i, token_id in enumerate(token_ids):
            if token_id < 0:
                sampled.errors[self.rows[i].request_id] = grammar_error(self.rows[i]) or UNSAMPLED
                sampled.logprobs[i] = None
        return sampled


class Sampler:
    """Chooses the next token of every request in a batch.

    Args:
        ops: what finds each row's likeliest token; None = PyTorch.
    """

    def __init__(self, ops: Ops | None = None) -> None:
        self.ops = ops or Ops()

    def __call__(self, logits: Tensor, rows: Sequence[Row]) -> SampledTokens:
        """Sample one token per row, and wait for it. See `launch`."""
        return self.launch(logits, rows).wait()

    def launch(self, logits: Tensor, rows: Sequence[Row], allowed: Tensor | None = None) -> SampleInFlight:
        """Begin to sample one token per row. On a GPU this does not wait, if Triton is there.

        Args:
            logits: [R, V], any float dtype; left unchanged.
            rows: R of them: whose next token each row of logits is about.
            allowed: the same logits, -inf where a grammar rules the token out; None = there are no grammars.
        Raises:
            ValueError: there are not as many rows as logits have.
        """
        if len(rows) != logits.shape[0]:
            raise ValueError(f"{logits.shape[0]} rows of logits for {len(rows)} requests")
        allowed = logits if allowed is None else allowed
        token_ids = self.ops.likeliest(allowed)  # an all-greedy batch is done after this one pass
        params = [row.params for row in rows]
        touched = places_sampled(rows)
        if touched:
            at = on_device(touched, logits.device)
            # All of them are copied once, some of them looked up first.
            copied = allowed.to(torch.float32, copy=True) if len(touched) == len(rows) else allowed[at].float()
            chosen = self.choose(copied, [rows[i] for i in touched])
            token_ids[at] = torch.where(token_ids[at] < 0, -1, chosen)
        logprobs, reported = None, {i: p.logprobs for i, p in enumerate(params) if p.logprobs is not None}
        if reported:
            at = on_device(list(reported), logits.device)
            found = report_logprobs(logits[at].float(), token_ids[at], max(reported.values()))
            logprobs = found.new_zeros(len(rows), found.shape[1]).index_copy_(0, at, found)
        return SampleInFlight(rows, token_ids, reported, logprobs)

    def choose(self, logits: Tensor, rows: Sequence[Row]) -> Tensor:
        """[R] token ids for rows that are random or have penalties. `logits` [R, V] float32 is overwritten."""
        apply_penalties(logits, rows)
        rule_out_stops(logits, rows)
        groups: dict[Draw, list[int]] = {}
        for i, row in enumerate(rows):
            groups.setdefault(draw_of(row.params), []).append(i)
        if len(groups) == 1:
            [draw] = groups
            return draw(logits, rows)
        token_ids = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        for draw, group in groups.items():
            at = on_device(group, logits.device)
            token_ids[at] = draw(logits[at], [rows[i] for i in group])
        return token_ids


def on_device(numbers: npt.ArrayLike, device: torch.device) -> Tensor:
    """Numbers as a tensor: int64 or float64, as they are."""
    return to_device(np.asarray(numbers), device)


def uniforms(rows: Sequence[Row], device: torch.device, purpose: str = "") -> Tensor:
    """[R] float64: the random number of each row."""
    return on_device([uniform(row.seed, row.draw_position, purpose) for row in rows], device)


def apply_penalties(logits: Tensor, rows: Sequence[Row]) -> None:
    """Each request's penalties, in place on its row of logits [R, V].

    - repetition (CTRL, Keskar et al. 2019, as in Hugging Face): a token seen in prompt or output has
      its logit divided by the penalty if positive, multiplied if negative.
    - frequency and presence (OpenAI's API): subtracted per occurrence in the output, and once for a
      token that occurs there at all. The prompt does not count.

    Before them comes the request's logit_bias, added.
    """
    biased = [(i, *bias) for i, row in enumerate(rows) for bias in row.params.logit_bias]
    if biased:
        at, token, bias = on_device(np.array(biased, dtype=np.float64), logits.device).T
        logits[at.long(), token.long()] += bias.to(logits.dtype)
    seen = []  # only these logits change: (index of the row, token, times in the output, the three penalties)
    for i, row in enumerate(rows):
        p = row.params
        if p.has_penalty:
            counts = Counter(row.output_token_ids)
            penalties = (p.repetition_penalty, p.presence_penalty, p.frequency_penalty)
            seen += [(i, token, counts[token], *penalties) for token in counts.keys() | row.prompt_token_ids]
    if not seen:
        return

    columns = on_device(np.array(seen, dtype=np.float64), logits.device).T
    at, token = columns[:2].long()
    count, repetition, presence, frequency = columns[2:]
    value = logits[at, token].double()
    ruled_out = value == -math.inf  # by a grammar: so it stays
    value = torch.where(value > 0, value / repetition, value * repetition)
    value -= frequency * count + presence * (count > 0)
    limits = torch.finfo(logits.dtype)
    value = value.clamp(limits.min, limits.max).to(logits.dtype)  # an extreme penalty stays finite
    logits[at, token] = value.masked_fill(ruled_out, -math.inf)


def rule_out_stops(logits: Tensor, rows: Sequence[Row]) -> None:
    """Until a request has its min_tokens, none of its stop tokens, in place on its row of logits [R, V]."""
    vocab_size = logits.shape[1]  # a client may name any number as a stop token
    early = [(i, row.stop_token_ids) for i, row in enumerate(rows) if row.draw_position < row.params.min_tokens]
    if ruled_out := [(i, token) for i, stops in early for token in stops if 0 <= token < vocab_size]:
        at, token = on_device(ruled_out, logits.device).T
        logits[at, token] = logits[at, token].clamp(max=RULED_OUT)


def apply_temperature(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Logits [R, V] less their maximum (now 0), over the temperature: no temperature can overflow. 0 counts as 1."""
    limits = torch.finfo(logits.dtype)
    temperatures = on_device([row.params.temperature or 1.0 for row in rows], logits.device)
    divisor = temperatures.double().clamp(limits.tiny, limits.max)
    return (logits - logits.amax(dim=-1, keepdim=True)).div_(divisor.to(logits.dtype)[:, None])


def pick(cumulative: Tensor, total: Tensor, draws: Tensor) -> Tensor:
    """Inverse transform sampling: [R] the first index whose cumulative weight [R, K] exceeds u * total [R]."""
    target = (draws * total).to(cumulative.dtype)
    # Rounding can lift u * total to total itself, where there is no index left to find.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    # The clamp is for rows of NaN, which are thrown away later, but must not index out of bounds.
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp(max=cumulative.shape[1] - 1)


Draw = Callable[[Tensor, Sequence[Row]], Tensor]
"""Logits [R, V] and their rows -> [R] tokens."""


def draw_of(params: SamplingParams) -> Draw:
    """How a request's tokens are drawn. Only filters need logits in order, so other rows are never sorted."""
    if params.temperature == 0:
        return take_likeliest
    return draw_filtered if params.has_filter else draw_plain


def take_likeliest(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """[R] the most likely token of each row of logits [R, V]."""
    return logits.argmax(dim=-1)


def draw_plain(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """[R] tokens drawn from the whole of each row's softmax."""
    cumulative = apply_temperature(logits, rows).exp_().cumsum(dim=-1)
    return pick(cumulative, cumulative[:, -1], uniforms(rows, logits.device))


def draw_filtered(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """[R] tokens drawn from the n likeliest of each row: first a rank, then the token that has it."""
    params = [row.params for row in rows]
    scaled = apply_temperature(logits, rows)
    vocab_size = scaled.shape[1]
    total = scaled.exp().sum(dim=-1, dtype=torch.float64)
    limits, draws = filter_limits(params, logits.device), uniforms(rows, logits.device)
    draw_wide = select_draw_wide(logits.device)
    width = min(max(FIRST_PREFIX, *(p.top_k for p in params)), vocab_size)
    while True:
        values = scaled.topk(width).values  # sorted, largest first
        cumulative = values.double().exp().cumsum(dim=-1)
        kept = count_kept(values, cumulative, total, limits)
        # Where the whole prefix is kept, the border may lie beyond it: look further. Top-k's never does.
        is_enough = width == vocab_size or all(p.top_k for p in params)
        if is_enough or draw_wide or int(kept.max()) < width:
            break
        width = min(8 * width, vocab_size)
    mass = cumulative.gather(1, kept[:, None] - 1)[:, 0]
    rank = pick(cumulative, mass, draws)

    # The token of that rank: of all tokens with this logit, in order of id, skip as many as are ranked before it.
    value = values.gather(1, rank[:, None])[:, 0]
    skip = rank - (values > value[:, None]).sum(dim=-1)
    if draw_wide and not is_enough:  # a GPU looks further by itself
        top_k, top_p, log_min_p = limits
        is_wide = (kept == width) & (top_k == 0)
        drawn = draw_wide(scaled, is_wide, top_p * total, log_min_p, draws)
        value, skip = torch.where(is_wide, drawn, torch.stack((value.double(), skip.double())))
    occurrence = (scaled == value.float()[:, None]).cumsum(dim=-1, dtype=torch.int32)
    return torch.searchsorted(occurrence, (skip + 1).to(torch.int32)[:, None])[:, 0]


def filter_limits(params: Sequence[SamplingParams], device: torch.device) -> Tensor:
    """[3, R] float64: top_k (0 = all), top_p (infinite = all), and the logarithm of min_p, the least scaled logit."""
    limits = [(min(p.top_k, NO_TOP_K), p.top_p if p.top_p < 1 else math.inf, p.min_p) for p in params]
    top_k, top_p, min_p = on_device(limits, device).T
    return torch.stack((top_k, top_p, min_p.log()))  # log 0 = -inf: all are kept


def count_kept(values: Tensor, cumulative: Tensor, total: Tensor, limits: Tensor) -> Tensor:
    """[R] how many of the likeliest tokens top-k, top-p and min-p leave; at least 1.

    Args:
        values: [R, K] the K largest scaled logits, largest (0) first.
        cumulative: [R, K] running sum of exp(values), float64.
        total: [R] sum of exp over the whole vocabulary, float64.
        limits: see filter_limits.
    """
    num_values = values.shape[1]
    top_k, top_p, log_min_p = limits[:, :, None]
    k = torch.where(top_k > 0, top_k, num_values).long().clamp(max=num_values)
    mass = torch.where(top_k > 0, cumulative.gather(1, k - 1), total[:, None])  # what top-p is a share of

    in_top_k = torch.arange(num_values, device=values.device) < k
    # A token is kept while those before it have not reached the mass: the smallest set that does.
    in_top_p = cumulative - values.double().exp() < top_p * mass
    in_min_p = values.double() >= log_min_p
    return (in_top_k & in_top_p & in_min_p).sum(dim=-1).clamp(min=1)


def probabilities(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """[R, V] float32: the distribution that each row's token is drawn from. `logits` [R, V] float32 is overwritten."""
    apply_penalties(logits, rows)
    rule_out_stops(logits, rows)
    params = [row.params for row in rows]
    scaled = apply_temperature(logits, rows)
    if filtered := [i for i, p in enumerate(params) if p.has_filter and p.temperature > 0]:
        at = on_device(filtered, logits.device)
        values, order = scaled[at].sort(dim=-1, descending=True, stable=True)  # equal ones by token id
        cumulative = values.double().exp().cumsum(dim=-1)
        limits = filter_limits([params[i] for i in filtered], logits.device)
        kept = count_kept(values, cumulative, cumulative[:, -1], limits)
        dropped = torch.arange(values.shape[1], device=logits.device) >= kept[:, None]
        scaled[at] = scaled[at].scatter(1, order, values.masked_fill(dropped, -math.inf))
    probs = scaled.softmax(dim=-1)
    if greedy := [i for i, p in enumerate(params) if p.temperature == 0]:
        at = on_device(greedy, logits.device)
        probs[at] = torch.zeros_like(probs[at]).scatter_(1, logits[at].argmax(dim=-1, keepdim=True), 1.0)
    return probs


def report_logprobs(logits: Tensor, token_ids: Tensor, count: int) -> Tensor:
    """[R, 1 + 2 * count] float64, natural log-probabilities under softmax(logits) [R, V]: the chosen token's,
    then the `count` likeliest token ids, then theirs."""
    normalizer = logits.logsumexp(dim=-1, keepdim=True)
    chosen = logits.gather(1, token_ids.clamp(min=0)[:, None]) - normalizer
    best = logits.topk(min(count, logits.shape[1]))
    return torch.cat((chosen.double(), best.indices.double(), (best.values - normalizer).double()), dim=1)


def as_logprob(token_id: int, reported: list[float], count: int) -> TokenLogprob:
    """One row of `report_logprobs`, of which the request asked for `count`."""
    chosen, *best = reported
    half = len(best) // 2
    likeliest = zip((int(token) for token in best[:half]), best[half:])
    return TokenLogprob(token_id, chosen, dict(itertools.islice(likeliest, count)))
