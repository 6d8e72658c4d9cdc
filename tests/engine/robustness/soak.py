"""The engine under random toggles, requests, aborts and faults, its integrity checked after every step.

make soak                                                      # an hour
PYTHONPATH=.:tests/engine python -m robustness.soak --seconds 60
PYTHONPATH=.:tests/engine python -m robustness.soak --seed 7 --life 123   # one life again, exactly as it was
"""

import argparse
import logging
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import psutil
import torch
from robustness.judge import Reference
from robustness.life import Tally, live
from robustness.toggles import Models, make_heads
from tiny_llama import make_tiny_llama

from minillm.model.checkpoints import resolve

STEPS = (20, 400)
"""Each life is so many steps long, at least and at most; then it is let finish."""
REPORT_EVERY_S = 60
GROWTH_MB = 60
"""More memory than this from the middle third of the time to the last, and something is kept."""
LONG_S = 1800
"""A shorter soak is not judged by its memory: a model of a kind that is met late looks like a leak."""


def make_models(folder: Path) -> Models:
    """The tiny model, and two untrained draft heads for it, in new folders inside `folder`."""
    tiny = make_tiny_llama(folder / "tiny", resolve("smollm2-135m"))
    models = Models(tiny, folder / "head", folder / "eagle3", {})
    make_heads(models)
    return models


class LifeFailed(Exception):
    """One life went wrong; the message says how to repeat it."""


class Soak:
    """Life after life. What happens in each depends on the seed and its number only."""

    def __init__(self, models: Models, seed: int) -> None:
        self.models, self.seed = models, seed
        self.reference = Reference(models.folder)
        self.tally = Tally()

    def life(self, number: int, num_steps: int | None = None) -> None:
        """Raises LifeFailed."""
        name = f"{self.seed}/{number}"
        if num_steps is None:
            num_steps = random.Random(f"{name} steps").randint(*STEPS)
        try:
            live(self.models, self.reference, self.tally, name, num_steps)
        except Exception as error:
            again = f"PYTHONPATH=.:tests/engine python -m robustness.soak --seed {self.seed} --life {number}"
            raise LifeFailed(f"{type(error).__name__}: {error}\nTo repeat it: {again} --steps {num_steps}") from error


def megabytes() -> float:
    return psutil.Process().memory_info().rss / 1e6


def growth(samples: Sequence[float]) -> float:
    """From the mean of the middle third of the samples to that of the last. In the first third the process gets what
    it needs for good: compiled kernels, every kind of model. What leaks goes on growing afterwards."""
    third = len(samples) // 3
    return fmean(samples[-third:]) - fmean(samples[third : 2 * third]) if third else 0.0


def run_for(soak: Soak, seconds: float, keep_going: bool) -> int:
    """Live until the time is over, and report. Returns how many lives went wrong; the first ends it, unless told to
    keep going."""
    begin = reported = time.monotonic()
    number = failed = 0
    samples = []
    while (now := time.monotonic()) - begin < seconds:
        if now - reported > REPORT_EVERY_S:
            reported = now
            print(f"{now - begin:.0f} s, {megabytes():.0f} MB, {asdict(soak.tally)}", flush=True)
        try:
            soak.life(number)
        except LifeFailed as error:
            logging.getLogger(__name__).error("life %d: %s", number, error, exc_info=error.__cause__)
            failed += 1
            if not keep_going:
                break
        number += 1
        samples.append(megabytes())
    grown = growth(samples)
    print(f"over after {time.monotonic() - begin:.0f} s and {number} lives, of which {failed} went wrong")
    print(f"{megabytes():.0f} MB, {grown:+.0f} MB from the middle third to the last; {asdict(soak.tally)}")
    leaks = seconds >= LONG_S and grown > GROWTH_MB
    if leaks:
        print(f"more than {GROWTH_MB} MB more: something is kept")
    return failed + leaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--life", type=int, default=None, help="only this one")
    parser.add_argument("--steps", type=int, default=None, help="of that life")
    parser.add_argument("--keep-going", action="store_true", help="after a life that went wrong")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("minillm").setLevel(logging.CRITICAL)  # it reports every fault that is put there
    seed = random.randrange(10**6) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(make_models(Path(folder)), seed)
        if asked.life is not None:
            soak.life(asked.life, asked.steps)
            print(asdict(soak.tally))
            return
        failed = run_for(soak, asked.seconds, asked.keep_going)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
