"""One answer to `minillm beat`: of the replicas that keep TTFT and TPOT, by estimate, the cheapest; else refuse."""

PREFILL = (13500, 13500, 5100)  # prompt tokens a second
DECODE_S, MIXED_S = (0.021, 0.021, 0.032), (0.073, 0.073, 0.193)  # steps without and with a prompt
WINDOW_S = 3.0


class Policy:
    def __init__(self):
        self.cached = [set(), set(), set()]
        self.queued = [{}, {}, {}]  # by replica: request -> (deadline, prompt tokens to compute)
        self.sent = [[], [], []]  # by replica: (moment, prompt tokens) of the last seconds

    def cost(self, request, number):
        return request.prompt_tokens - (request.prefix_tokens if request.prefix in self.cached[number] else 0)

    def share(self, number, now, tokens):
        """The share of a replica's steps that will have a prompt in them."""
        self.sent[number] = [(at, n) for at, n in self.sent[number] if at > now - WINDOW_S]
        recent = sum(n for _, n in self.sent[number])
        return min((recent + tokens) / (WINDOW_S * PREFILL[number]), 1.0)

    def choose(self, now, request, replicas):
        """The replica that serves it in time for the least work, and None if there is none."""
        best = None
        for replica in replicas:
            number, deadline = replica.number, request.arrival_s + request.ttft_limit_s
            tokens = self.cost(request, number)
            ahead = sum(n for at, n in self.queued[number].values() if at <= deadline)
            ttft = MIXED_S[number] + 1.1 * (ahead + tokens) / PREFILL[number]
            share = self.share(number, now, tokens)
            tpot = DECODE_S[number] + share * (MIXED_S[number] - DECODE_S[number])
            if ttft <= request.ttft_limit_s and tpot <= 1.3 * request.tpot_limit_s and replica.outstanding < 64:
                price = (0.4 if number == 2 else 1) * tokens + 1000 * share
                if best is None or price < best[0]:
                    best = price, number
        return None if best is None else best[1]

    def admit(self, now, request, replicas):
        return self.choose(now, request, replicas) is not None

    def route(self, now, request, replicas):
        number = self.choose(now, request, replicas)
        tokens = self.cost(request, number)
        self.queued[number][request.id] = request.arrival_s + request.ttft_limit_s, tokens
        self.sent[number].append((now, tokens))
        self.cached[number] |= {request.prefix} - {""}
        return number

    def schedule(self, now, waiting, replica):
        number, ids = replica.number, {request.id for request in waiting}
        self.queued[number] = {id: work for id, work in self.queued[number].items() if id in ids}
        slack = {r.id: w[0] - now - w[1] / PREFILL[number] for r in waiting for w in [self.queued[number][r.id]]}
        late = [request for request in waiting if slack[request.id] < 0]
        return sorted((r for r in waiting if r not in late), key=lambda r: slack[r.id]), late

    def ended(self, now, request, output_tokens, in_time):
        pass
