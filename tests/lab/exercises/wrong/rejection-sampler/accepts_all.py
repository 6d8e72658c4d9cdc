# feedback: every draft passes
import numpy as np


def verify(target, proposal, drafts, rng):
    return [*drafts, int(rng.choice(len(target[-1]), p=target[-1]))]
