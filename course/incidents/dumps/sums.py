"""What a dump's numbers imply about capacity, by arithmetic alone."""

import math
from dataclasses import dataclass, replace

from course.incidents.numbers import answered
from course.incidents.service import ServicePlay
from course.lessons.lesson_13 import run as lesson_13


@dataclass(frozen=True)
class Sums:
    """The numbers of a dump that can be multiplied; means."""

    rate: float
    """Requests a second."""
    prompt: float
    """Tokens."""
    output: float
    """Tokens."""
    ttft: float
    """Seconds."""
    gap: float
    """Seconds between two tokens of one answer."""
    gpus: int
    peak: float
    """FLOP/s of one GPU on its data sheet."""
    weights: float
    """Parameters that each token meets: those of the layers."""
    pool: int
    """KV tokens that fit."""

    @property
    def e2e(self) -> float:
        """Seconds of a mean request."""
        return self.ttft + (self.output - 1) * self.gap

    @property
    def in_flight(self) -> float:
        """Requests that are waiting or at work, on average: Little's law."""
        return self.rate * self.e2e

    @property
    def prefill_share(self) -> float:
        """What reading all prompts asks for, as a share of the GPUs' peak; two operations for each weight."""
        return self.rate * self.prompt * 2 * self.weights / (self.gpus * self.peak)

    @property
    def kv_requests(self) -> float:
        """Requests whose KV fits at once; on average half of an answer is there."""
        return self.pool / (self.prompt + self.output / 2)

    @property
    def servers(self) -> int:
        """At least so many servers, if prompts are read at the peak of the data sheet and nothing else is done."""
        return max(math.ceil(self.prefill_share), 1)


ASKED = {
    "in_flight": "requests in flight (Little's law)",
    "prefill_share": "what all prompts ask for, over the peak of its GPUs",
    "kv_requests": "mean requests whose KV fits at once",
    "servers": "such servers, at the very least, for the prompts alone",
}
"""What is asked, by name: properties of Sums."""


def slips(sums: Sums) -> dict[str, dict[float, str]]:
    """By what is asked: wrong values that come from a known slip, and its words."""
    return {
        "in_flight": {
            sums.rate * sums.ttft: "that is with TTFT alone: a request stays until its last token",
            sums.rate * (sums.output - 1) * sums.gap: "that leaves TTFT out",
            sums.rate: "that is the rate: multiply by how long one stays",
        },
        "prefill_share": {
            sums.prefill_share / 2: "each weight is used twice for a token: a multiplication and an addition",
            sums.prefill_share * sums.gpus: "that is for one GPU of the server",
            sums.prefill_share * sums.output / sums.prompt: "those are the answers' tokens",
            sums.prefill_share * 100: "that is in percent: a share was asked for",
        },
        "kv_requests": {
            sums.pool / sums.prompt: "answers are kept in the cache, too",
            float(sums.pool): "that is in tokens: divide by those of one request",
        },
        "servers": {sums.prefill_share: "there is no part of a server: round up"},
    }


def sums_of(play: ServicePlay) -> Sums:
    """Read off a run."""
    service, records = play.service, play.run.records
    on, done = service.deployment(), answered(play)
    count = max(len(records), 1)
    output = sum(record.request.output_tokens for record in records) / count
    ttft = sum(record.ttft("intended") for record in done) / max(len(done), 1)
    e2e = sum(record.e2e("intended") for record in done) / max(len(done), 1)
    return Sums(
        rate=len(records) / service.duration_s,
        prompt=sum(record.request.num_prompt_tokens for record in records) / count,
        output=output,
        ttft=ttft,
        gap=(e2e - ttft) / max(output - 1, 1),
        gpus=service.gpus,
        peak=on.profile.hardware.peak_flops("bfloat16"),
        weights=on.model.layer_params,
        pool=on.num_kv_blocks * on.block_size * service.fleet.replicas,
    )


def thirteen(play: ServicePlay) -> Sums:
    """The well-known dump: its own numbers, on the machine of the run. Its gap and TTFT are p99s: upper estimates."""
    return replace(
        sums_of(play),
        rate=lesson_13.QPS,
        prompt=lesson_13.PROMPT,
        output=lesson_13.OUTPUT,
        ttft=lesson_13.TTFT_S,
        gap=lesson_13.ITL_S,
    )
