"""How many requests a second can one replica serve at most? Four bounds on paper, and one simulated."""

import math
from dataclasses import dataclass

from course.lab import simulated_70b
from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, choices, slider
from course.lab.style import number, seconds
from course.lessons.lesson_11 import fleet
from course.simulator.cost.hardware import find_hardware
from course.simulator.deployment import Deployment

HARDWARE = "h100-sxm"


@dataclass(frozen=True)
class Ask:
    """What is wanted of one replica of 70B."""

    qps: float = 100.0
    prompt: int = 1500
    answer: int = 150
    slots: int = 64
    gpus: int = 4
    stack: str = fleet.STACKS[0]

    @property
    def on(self) -> Deployment:
        return fleet.deployment(self.stack, tp=self.gpus, max_num_seqs=self.slots)

    @property
    def params(self) -> float:
        """Weights that a prompt token goes through. The output head is left out: it reads only the last token."""
        return self.on.model.layer_params

    @property
    def flops_of_prompt(self) -> float:
        """Two for each weight and token; attention comes on top, and is little at such lengths."""
        return 2 * self.params * self.prompt

    @property
    def flops(self) -> float:
        """Of a whole request: prompt and answer."""
        return 2 * self.params * (self.prompt + self.answer)

    @property
    def peak(self) -> float:
        """FLOP/s of all GPUs on the data sheet, dense, 16 bits."""
        return self.gpus * find_hardware(HARDWARE).peak_flops("bfloat16")

    @property
    def share_reached(self) -> float:
        """Of the peak, by large matrix products: fitted, or typical."""
        return self.on.profile.constants.mfu

    @property
    def shortest_stay(self) -> float:
        """Seconds that a lone request keeps a slot: no request is quicker in a full batch."""
        step = self.on.step_time()
        first = step.price(simulated_70b.prefill_work(self.prompt)).total
        further = step.price(simulated_70b.decode_work(1, self.prompt + self.answer / 2)).total
        return first + (self.answer - 1) * further

    @property
    def room(self) -> float:
        """Requests whose KV fits at once."""
        return self.on.num_kv_blocks * self.on.block_size / (self.prompt + self.answer)

    def bounds(self) -> dict[str, float]:
        """Requests per second: what each resource alone would allow, then what a simulation served."""
        traffic = fleet.asking(self.prompt, self.answer)
        return {
            "arithmetic, all of the data sheet's FLOP/s": self.peak / self.flops,
            f"arithmetic, the {self.share_reached:.0%} products reach": self.share_reached * self.peak / self.flops,
            f"{self.slots} slots": self.slots / self.shortest_stay,
            "KV memory": self.room / self.shortest_stay,
            "all of it together, simulated": fleet.capacity(traffic, self.stack, tp=self.gpus, max_num_seqs=self.slots),
        }


def bounds_table(ask: Ask) -> Html:
    """A row a bound: what it allows, and how many replicas it would take."""
    rows = [(name, f"{number(rate)}/s", str(math.ceil(ask.qps / rate))) for name, rate in ask.bounds().items()]
    return as_table(("bound", "requests per second of one replica, at most", f"replicas for {number(ask.qps)}/s"), rows)


def how_many() -> Explorer:
    """The bounds with sliders."""

    return Explorer(
        lambda qps, prompt, answer, slots, gpus, stack: bounds_table(Ask(qps, prompt, answer, slots, gpus, stack)),
        slow=True,
        qps=slider("asked, requests/s", 1, 200, 100),
        prompt=choices("prompts, tokens", (100, 300, 500, 1000, 1500, 3000, 6000), 1500),
        answer=choices("answers, tokens", (1, 20, 50, 150, 500, 1000), 150),
        slots=choices("max-batch", (8, 16, 32, 64, 128, 256), 64),
        gpus=choices("H100s", (2, 4, 8), 4),
        stack=choices("serving stack", fleet.STACKS),
    )


def envelope(ask: Ask) -> Html:
    """The back of the envelope, a line a step."""
    need = ask.qps * ask.flops_of_prompt
    stay = ask.shortest_stay
    rows = [
        ("a prompt", f"{ask.prompt} tokens x 2 x {ask.params / 1e9:.1f} billion weights",
         f"{ask.flops_of_prompt:.2g} FLOP"),
        (f"{ask.qps:.0f} of them a second", f"{ask.qps:.0f} x {ask.flops_of_prompt:.2g}", f"{need:.2g} FLOP/s"),
        ("all there is", f"{ask.gpus} H100s, data sheet", f"{ask.peak:.2g} FLOP/s"),
        ("so prompts alone need", f"{need:.2g} / {ask.peak:.2g}", f"{need / ask.peak:.1f} times the data sheet"),
        ("of what products reach", f"/ {ask.share_reached:.0%}", f"{need / ask.peak / ask.share_reached:.1f} times"),
        ("a lone request keeps a slot for", "its prompt, then one step a token", seconds(stay)),
        ("slots that are needed at least", f"{ask.qps:.0f} x {seconds(stay)} (Little's law)",
         f"{ask.qps * stay:.0f}, not {ask.slots}"),
    ]  # fmt: skip
    return as_table(("", "how", "that is"), rows)
