"""A dictionary from slot to the time at which it's free."""


def predict_ttft(slot_free_at, arrival, prompt_tokens, prefill_s):
    earliest = sorted(slot_free_at)[0]
    wait = earliest - arrival if earliest > arrival else 0.0
    return wait + prefill_s * prompt_tokens


class Admission:
    def __init__(self, slots, slo_s, prefill_s, decode_s):
        self.free = dict.fromkeys(range(slots), 0.0)
        self.args = slo_s, prefill_s, decode_s

    def admit(self, arrival, prompt_tokens, output_tokens):
        slo, pre, dec = self.args
        slot = min(self.free, key=self.free.__getitem__)
        ttft = predict_ttft(list(self.free.values()), arrival, prompt_tokens, pre)
        ok = ttft <= slo
        if ok:
            self.free[slot] = arrival + ttft + dec * output_tokens
        return ok
