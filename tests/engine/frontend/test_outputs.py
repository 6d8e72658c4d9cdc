"""What a caller sees of a request while it grows."""

from minillm.core.params import SamplingParams
from minillm.core.request import Request, TokenLogprob
from minillm.core.timeline import Timeline
from minillm.frontend.detokenizer import Detokenizer
from minillm.frontend.outputs import OutputSequence


class CountingList(list):
    """Counts the elements that are read from it."""

    num_read = 0

    def __iter__(self):
        for each in super().__iter__():
            self.num_read += 1
            yield each

    def __getitem__(self, index):
        found = super().__getitem__(index)
        self.num_read += len(found) if isinstance(index, slice) else 1
        return found


def test_an_output_costs_no_more_the_longer_the_answer() -> None:
    """Nothing that grows is copied until it's asked for; and what was seen once doesn't change."""
    request = Request("a", [1], SamplingParams(logprobs=0), Timeline(0.0))
    request.output_token_ids, request.logprobs = CountingList(), CountingList()
    sequence, seen = OutputSequence(request, Detokenizer(None, [1])), []
    for token in range(200):
        request.output_token_ids.append(token)
        request.logprobs.append(TokenLogprob(token, -1.0, {}))
        seen.append(sequence.completion())
    assert request.output_token_ids.num_read + request.logprobs.num_read <= 200
    for count, completion in enumerate(seen, start=1):
        assert completion.token_ids == [each.token_id for each in completion.logprobs] == list(range(count))
        assert (completion.num_old_tokens, completion.num_new_tokens) == (count - 1, 1)
