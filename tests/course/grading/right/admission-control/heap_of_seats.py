import heapq

import numpy as np


def predict_ttft(slot_free_at, arrival, prompt_tokens, prefill_s):
    waits = np.clip(np.asarray(slot_free_at) - arrival, 0, None)
    return waits.min() + prefill_s * prompt_tokens


class Admission:
    """A heap of the slots that are taken; those that were never used are counted."""

    def __init__(self, slots, slo_s, prefill_s, decode_s):
        self.unused, self.taken = slots, []
        self.slo, self.read, self.write = slo_s, prefill_s, decode_s

    def admit(self, arrival, prompt_tokens, output_tokens):
        while self.taken and self.taken[0] <= arrival:
            heapq.heappop(self.taken)
            self.unused += 1
        begin = arrival if self.unused else self.taken[0]
        reading = prompt_tokens * self.read
        good = begin - arrival + reading <= self.slo
        if good:
            if self.unused:
                self.unused -= 1
            else:
                heapq.heappop(self.taken)
            heapq.heappush(self.taken, begin + reading + output_tokens * self.write)
        return np.bool_(good)
