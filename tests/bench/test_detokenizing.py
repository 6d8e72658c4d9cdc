from minillm.bench.detokenizing import detokenizing_cost


class SlowDecoder:
    """Notes how many tokens it was asked to decode."""

    def __init__(self) -> None:
        self.decoded: list[int] = []

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        self.decoded.append(len(token_ids))
        return "".join(f" w{i}" for i in token_ids)


def test_each_way_decodes_what_it_says() -> None:
    decoder = SlowDecoder()
    cost = detokenizing_cost(decoder, list(range(50)), repeats=1)
    assert decoder.decoded.count(50) == 2, "once as a whole, once as the last of the naive way"
    assert sum(decoder.decoded[-50:]) == sum(range(1, 51))
    assert max(decoder.decoded[:-51]) <= 10, "streaming looks at a short window only"
    assert min(cost.streamed_s, cost.whole_s, cost.from_start_s) >= 0
