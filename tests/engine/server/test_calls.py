"""What is known of a call may be written down: it doesn't hold what the user wrote."""

from minillm.server.calls import Call
from minillm.server.protocol import CompletionBody


def test_a_call_is_shown_without_its_prompt() -> None:
    call = Call("cmpl-1", "/v1/completions", False, arrival=1.0, unix_time=2.0)
    call.body = CompletionBody(model="tiny", prompt="a secret")
    assert repr(call).startswith("Call(request_id='cmpl-1', path=") and "secret" not in repr(call)
