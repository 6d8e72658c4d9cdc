# feedback: grows with how many came before
def predict_ttft(seat_free_at, arrival, prompt_tokens, read_s):
    start = max(min(seat_free_at), arrival)
    return start + prompt_tokens * read_s - arrival


class Admission:
    def __init__(self, seats, slo_s, read_s, write_s):
        self.slo_s, self.read_s, self.write_s = slo_s, read_s, write_s
        self.seats, self.inside = seats, []

    def admit(self, arrival, prompt_tokens, output_tokens):
        seat_free_at = [0.0] * self.seats
        for when, prompt, output in self.inside:
            seat = seat_free_at.index(min(seat_free_at))
            seat_free_at[seat] = max(seat_free_at[seat], when) + prompt * self.read_s + output * self.write_s
        ttft = predict_ttft(seat_free_at, arrival, prompt_tokens, self.read_s)
        if ttft > self.slo_s:
            return False
        self.inside.append((arrival, prompt_tokens, output_tokens))
        return True
