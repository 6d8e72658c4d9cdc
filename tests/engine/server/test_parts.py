"""Small parts on their own: admission control's arithmetic, tokens as bytes."""

from contextlib import ExitStack

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from minillm.frontend.detokenizer import gpt2_letters
from minillm.policies.config import EngineConfig
from minillm.server.admission import LONGEST_RETRY_AFTER_S, AdmissionLimiter, ApiKeys
from minillm.server.calls import Call
from minillm.server.config import ServeConfig
from minillm.server.errors import ApiError
from minillm.server.logprobs import piece_bytes
from minillm.server.protocol import ChatBody, CompletionBody, parse


def test_retry_after_follows_the_pace():
    limiter = AdmissionLimiter(ServeConfig(), EngineConfig(max_num_seqs=2, max_queue_len=6))
    for _ in range(200):
        limiter.served(4.0)
    with limiter.hold(2):
        assert limiter.retry_after_s() == 2  # one of two slots is free every 4 s / 2
        with limiter.hold(6):
            assert limiter.retry_after_s() == 14  # six more wait before a newcomer
            with pytest.raises(ApiError) as refused, limiter.hold(1):
                pass
    assert refused.value.status == 429 and refused.value.headers["retry-after"] == "14"
    assert limiter.num_sequences == 0 and limiter.retry_after_s() <= LONGEST_RETRY_AFTER_S


def test_in_fair_order_a_tenant_with_few_tokens_gets_in_where_one_with_many_does_not():
    limiter = AdmissionLimiter(ServeConfig(), EngineConfig(max_num_seqs=1, max_queue_len=8, scheduling_order="fair"))
    with ExitStack() as held:
        for _ in range(7):  # the engine's slot, and all of the queue but what is kept
            held.enter_context(limiter.hold(1, "many", 1000))
        with pytest.raises(ApiError) as refused:
            held.enter_context(limiter.hold(1, "many", 10))
        assert refused.value.code == "over_fair_share" and refused.value.status == 429
        held.enter_context(limiter.hold(1, "few", 10))
        held.enter_context(limiter.hold(1, "few", 10))  # tokens count, not requests
        for tenant in ("few", "another"):
            with pytest.raises(ApiError) as refused:
                held.enter_context(limiter.hold(1, tenant, 10))
            assert refused.value.code == "server_busy", "now it is full for all"
    with ExitStack() as held:
        for _ in range(6):
            held.enter_context(limiter.hold(1, "large", 500))
        held.enter_context(limiter.hold(1, "small", 10))
        with pytest.raises(ApiError, match="3000 tokens of yours"):
            held.enter_context(limiter.hold(1, "large", 10))
        held.enter_context(limiter.hold(1, "small", 10))
    assert not limiter._tokens, "nothing is kept of those that have left"
    plain = AdmissionLimiter(ServeConfig(), EngineConfig(max_num_seqs=1, max_queue_len=8))
    with ExitStack() as held:
        for _ in range(9):
            held.enter_context(plain.hold(1, "many", 1000))


def test_slots_do_not_count_without_batching():
    assert AdmissionLimiter(ServeConfig(), EngineConfig(batching="none", max_num_seqs=8)).num_slots == 1


def test_a_caller_is_known_by_a_hash_of_its_key(tmp_path):
    file = tmp_path / "keys"
    file.write_text("secret\n")
    keys = ApiKeys(str(file))
    caller = keys.caller("Bearer secret", "10.0.0.1")
    assert caller == keys.caller("bearer  secret", "10.0.0.2") and "secret" not in caller
    for wrong in (None, "", "secret", "Basic secret", "Bearer", "Bearer secre", "Bearer é"):
        with pytest.raises(ApiError):
            keys.caller(wrong, "10.0.0.1")
    assert ApiKeys(None).caller(None, "10.0.0.1") == "10.0.0.1"


@given(raw=st.binary(max_size=8))
def test_gpt2_letters_stand_for_all_bytes(raw: bytes):
    letters = {byte: letter for letter, byte in gpt2_letters().items()}
    assert len(letters) == 256
    assert piece_bytes("".join(letters[byte] for byte in raw)) == raw


def test_bytes_of_sentencepiece():
    assert piece_bytes("<0xE2>") == b"\xe2"
    assert piece_bytes("a b") is None  # a plain space is no letter of that alphabet


MANY = 100_000
HUGE: dict[str, dict] = {
    "unknown fields": {f"field_{i}": i for i in range(MANY)},
    "a long name": {"x" * 1_000_000: 1},
    "unknown fields in a message": {"messages": [{"role": "user", "content": "", **{f"f{i}": 1 for i in range(MANY)}}]},
    "bad messages": {"messages": [{}] * MANY},
    "bad parts": {"messages": [{"role": "user", "content": [{}] * MANY}]},
    "nulls for a prompt": {"prompt": [None] * MANY},
    "lists for a prompt": {"prompt": [[None]] * MANY},
    "a dictionary for a prompt": {"prompt": {str(i): i for i in range(MANY)}},
    "stops": {"stop": [0] * MANY},
    "stop tokens": {"stop_token_ids": ["a"] * MANY},
}


@pytest.mark.parametrize("fields", HUGE.values(), ids=HUGE)
def test_of_a_hundred_thousand_mistakes_few_are_explained(fields: dict):
    kind = ChatBody if "messages" in fields else CompletionBody
    with pytest.raises(ApiError) as refused:
        parse(orjson.dumps({"model": "tiny", **({} if "messages" in fields else {"prompt": ""}), **fields}), kind)
    assert refused.value.status == 400 and len(refused.value.body) < 2000
    assert isinstance(refused.value.__context__, ValidationError)
    assert refused.value.__context__.error_count() <= 8, "each mistake costs time, explained or not"


def test_a_call_is_shown_without_its_prompt():
    """So it may be written down."""
    call = Call("cmpl-1", "/v1/completions", False, arrival=1.0, unix_time=2.0)
    call.body = CompletionBody(model="tiny", prompt="a secret")
    assert repr(call).startswith("Call(request_id='cmpl-1', path=") and "secret" not in repr(call)
