# feedback: side by side
def predict_ttft(seat_free_at, arrival, prompt_tokens, read_s):
    start = max(min(seat_free_at), arrival)
    return start + prompt_tokens * read_s - arrival


class Admission:
    seat_free_at = []

    def __init__(self, seats, slo_s, read_s, write_s):
        self.slo_s, self.read_s, self.write_s = slo_s, read_s, write_s
        self.seat_free_at[:] = [0.0] * seats

    def admit(self, arrival, prompt_tokens, output_tokens):
        ttft = predict_ttft(self.seat_free_at, arrival, prompt_tokens, self.read_s)
        if ttft > self.slo_s:
            return False
        seat = self.seat_free_at.index(min(self.seat_free_at))
        self.seat_free_at[seat] = arrival + ttft + output_tokens * self.write_s
        return True
