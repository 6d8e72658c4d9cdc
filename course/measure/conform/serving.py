"""The checks of a server with OpenAI's API. With a checkpoint whose answers are known, against Hugging Face; without,
the server is held against itself."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from course.measure.conform.checkpoint import CLOSE, TEXT
from course.measure.conform.client import ServerUnderTest
from course.measure.conform.verdict import ConformityError, NotOfferedError

VLLM = "https://github.com/vllm-project/vllm"
LLAMA = "https://github.com/ggml-org/llama.cpp"
TEXTS = (
    "The scheduler takes the next request",
    "A cache that is full gives its oldest block away, and",
    "one",
    "Two engines read the same prompt. Each of them says what it thinks comes next, and the other listens. " * 4,
)
BLOCK = 16
"""The smallest block size in use; the others are multiples of it."""
CROWD = 16
"""Requests at the same time."""


@dataclass(frozen=True)
class ServingCheck:
    """One check."""

    name: str
    about: str
    run: Callable[[ServerUnderTest], None]
    """Raises ConformityError; NotOfferedError if the server doesn't have it, or nothing says what would be right."""
    seen: str = ""


SERVING_CHECKS: list[ServingCheck] = []


def check(
    about: str, seen: str = ""
) -> Callable[[Callable[[ServerUnderTest], None]], Callable[[ServerUnderTest], None]]:
    """Make a function one of the checks, by its name."""

    def add(run: Callable[[ServerUnderTest], None]) -> Callable[[ServerUnderTest], None]:
        SERVING_CHECKS.append(ServingCheck(run.__name__.replace("_", " "), about, run, seen))
        return run

    return add


def hold(condition: bool, sent: str, expected: object, got: object) -> None:
    """Raise ConformityError unless the condition holds."""
    if not condition:
        raise ConformityError(sent, str(expected), str(got))


def together(client: ServerUnderTest, prompts: list[str], **options: object) -> list[str]:
    """The texts that the server answers when asked for all of them at the same time."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return [answer.text for answer in pool.map(lambda prompt: client.complete(prompt, **options), prompts)]


# ------------------------------------------------------------------ the right tokens


@check("Greedy answers are Hugging Face's, from one token of prompt to many chunks.")
def tokens_beside_hugging_face(client: ServerUnderTest) -> None:
    reference = client.known()
    rng = random.Random(0)
    for length in (1, 2, 15, 16, 17, 31, 32, 33, 127, 128, 129, 600, 1_100):
        prompt = _known_tokens(client, rng, length)
        expected, gaps = reference.answer(prompt, 24)
        text = client.complete(client.prompt(prompt), max_tokens=24).text
        _same_text(f"a prompt of {length} tokens", client, expected, gaps, text)


def _known_tokens(client: ServerUnderTest, rng: random.Random, length: int) -> list[int]:
    """So many tokens of text: any, or where the server takes only text, a part of a page that is read as just these."""
    reference = client.known()
    if client.takes_token_ids:
        texts = [token_id for token_id in range(1, 400) if "\ufffd" not in reference.decode([token_id])]
        return rng.choices(texts, k=length)
    page = reference.encode(TEXT.read_text())
    for start in rng.sample(range(len(page) - length), k=len(page) - length):
        part = page[start : start + length]
        if reference.encode(reference.decode(part)) == part:
            return part
    raise NotOfferedError(f"it takes text only, and no text has just {length} tokens")


def _same_text(sent: str, client: ServerUnderTest, expected: list[int], gaps: list[float], text: str) -> None:
    """The text is that of the expected tokens, up to the first place where two were equally likely."""
    reference = client.known()
    whole = reference.decode(expected)
    if text == whole:
        return
    agree = max(n for n in range(len(expected)) if text.startswith(reference.decode(expected[:n])))
    hold(gaps[agree] < CLOSE, sent, repr(whole), f"{text!r}: token {agree} differs")


@check("A prompt that ends inside a character isn't repeated in the answer.", f"{VLLM}/issues/48853")
def prompts_that_end_inside_a_character(client: ServerUnderTest) -> None:
    reference = client.known()
    for ending in ("\N{HOT PEPPER}", "\N{CYRILLIC SMALL LETTER YA}"):
        prompt = reference.encode(f"{TEXTS[0]} {ending}")[:-1]
        expected, gaps = reference.answer(prompt, 12)
        sent = f"{TEXTS[0]!r} and the first bytes of {ending}"
        _same_text(sent, client, expected, gaps, client.complete(client.prompt(prompt), max_tokens=12).text)
        pieces, _ = client.stream(client.prompt(prompt), max_tokens=12)
        _same_text(f"{sent}, streamed", client, expected, gaps, "".join(pieces))


@check("The same prompt again, now cached, has the same answer.", f"{VLLM}/issues/3944")
def cached_prompts(client: ServerUnderTest) -> None:
    for text in TEXTS:
        first, *others = (client.complete(text, max_tokens=16).text for _ in range(3))
        hold(others == [first, first], f"{text[:40]!r} three times", repr(first), others)
    if not client.takes_token_ids:
        return
    rng = random.Random(2)
    # Whole characters: what a prompt does that ends inside one is another check's.
    known = client.reference is not None
    longest = _known_tokens(client, rng, 8 * BLOCK) if known else rng.choices(range(3, 200), k=8 * BLOCK)
    for length in (8 * BLOCK, BLOCK, 2 * BLOCK, 4 * BLOCK, 7 * BLOCK):  # each a whole number of blocks, all cached
        first, *others = (client.complete(longest[:length], max_tokens=16).text for _ in range(3))
        hold(others == [first, first], f"a prompt of {length} token ids three times", repr(first), others)
        if client.reference is not None:
            expected, gaps = client.known().answer(longest[:length], 16)
            _same_text(f"the first {length} tokens of a cached prompt", client, expected, gaps, first)


@check("An answer doesn't depend on who else is served at the same time.")
def batch_invariance(client: ServerUnderTest) -> None:
    prompts = [f"{i} {TEXTS[i % len(TEXTS)]}" for i in range(CROWD)]
    alone = [client.complete(prompt, max_tokens=40).text for prompt in prompts]
    crowd = together(client, prompts, max_tokens=40)
    for prompt, one, other in zip(prompts, alone, crowd):
        hold(one == other, f"{prompt[:40]!r} alone, then among {CROWD}", repr(one), repr(other))


@check("A seed makes a sampled answer repeatable, alone and in a crowd; another seed gives another.")
def seeds(client: ServerUnderTest) -> None:
    def sampled(prompt: str, seed: int) -> str:
        return client.complete(prompt, max_tokens=16, temperature=1.0, seed=seed).text

    prompt = TEXTS[0]
    one = sampled(prompt, 7)
    hold(sampled(prompt, 7) == one, "seed 7 twice", repr(one), "another text")
    with ThreadPoolExecutor(CROWD) as pool:
        crowd = list(pool.map(lambda seed: sampled(prompt, seed), [7, *range(100, 99 + CROWD)]))
    hold(crowd[0] == one, f"seed 7 among {CROWD}", repr(one), repr(crowd[0]))
    hold(len(set(crowd)) > 1, f"{CROWD} seeds", "different texts", "one text")


@check("A top_p that leaves only the likeliest token gives the greedy answer.")
def top_p(client: ServerUnderTest) -> None:
    for text in TEXTS[:2]:
        greedy = client.complete(text, max_tokens=16).text
        if all(client.complete(text, max_tokens=16, temperature=1.0, seed=seed).text == greedy for seed in range(4)):
            raise NotOfferedError("what it samples is the greedy answer anyway")
        got = client.complete(text, max_tokens=16, temperature=1.0, top_p=1e-4, seed=1).text
        hold(got == greedy, f"{text[:40]!r} with temperature 1, top_p 0.0001", repr(greedy), repr(got))


@check("Frequency and presence penalties count what was generated, as OpenAI defines them.")
def penalties(client: ServerUnderTest) -> None:
    reference = client.known()
    for options in ({"frequency_penalty": 1.5}, {"presence_penalty": 1.5}):
        for text in TEXTS[:2]:
            prompt = reference.encode(text)
            expected, gaps = reference.answer(prompt, 24, **options)
            got = client.complete(client.prompt(prompt), max_tokens=24, **options).text
            _same_text(f"{text!r} with {options}", client, expected, gaps, got)


@check("Log probabilities are the model's, and the greedy token's is the largest.")
def logprobs(client: ServerUnderTest) -> None:
    reference = client.known()
    prompt = reference.encode(TEXTS[0])
    expected, _ = reference.answer(prompt, 8)
    answer = client.complete(client.prompt(prompt), max_tokens=8, logprobs=3)
    if answer.logprobs is None:
        raise NotOfferedError("the answer has no logprobs")
    right = reference.logprobs(prompt, expected)
    hold(len(answer.logprobs) == 8, "logprobs=3, 8 tokens", "8 log probabilities", len(answer.logprobs))
    for place, (ours, theirs) in enumerate(zip(right, answer.logprobs)):
        hold(abs(ours - theirs) < 0.01, f"logprobs=3, token {place}", f"{ours:.4f}", f"{theirs:.4f}")
    for place, (theirs, best) in enumerate(zip(answer.logprobs, answer.best_logprobs or [])):
        hold(best - theirs < 0.01, f"logprobs=3, token {place}, greedy", "the largest", f"{theirs:.4f}, not {best:.4f}")


# ------------------------------------------------------------------ streams and ends


@check("A streamed answer is the whole answer, in pieces, and says once why it ended.")
def streams(client: ServerUnderTest) -> None:
    for text in TEXTS:
        whole = client.complete(text, max_tokens=24)
        pieces, reasons = client.stream(text, max_tokens=24)
        hold("".join(pieces) == whole.text, f"{text[:40]!r} streamed", repr(whole.text), repr("".join(pieces)))
        hold(reasons == [whole.finish_reason], f"{text[:40]!r} streamed", [whole.finish_reason], reasons)
        hold(len(pieces) > 1, f"{text[:40]!r} streamed", "more than one piece", "one")


@check("A chat's answer is that to its template's prompt, whole and streamed.")
def chats(client: ServerUnderTest) -> None:
    reference = client.known()
    messages = [{"role": "user", "content": TEXTS[0]}, {"role": "assistant", "content": TEXTS[2]}]
    messages.append({"role": "user", "content": TEXTS[1]})
    for turns in (messages[:1], messages):
        expected, gaps = reference.answer(reference.encode_chat(turns), 16)
        sent = f"a chat of {len(turns)} messages"
        _same_text(sent, client, expected, gaps, client.chat(turns, max_tokens=16))
        _same_text(f"{sent}, streamed", client, expected, gaps, "".join(client.chat_pieces(turns, max_tokens=16)))


@check(
    "A stop string ends the answer before it, also where it spans tokens; no stream shows a part of it.",
    f"{VLLM}/issues/3574",
)
def stop_strings(client: ServerUnderTest) -> None:
    for prompt in TEXTS[:3]:
        text = client.complete(prompt, max_tokens=32).text
        for start in range(2, min(len(text) - 4, 26), 3):
            stop = text[start : start + 4]
            if not stop.strip():
                continue
            expected = text[: text.index(stop)]
            answer = client.complete(prompt, max_tokens=32, stop=[stop])
            sent = f"{prompt[:30]!r}, stop={stop!r}"
            hold(answer.text == expected, sent, repr(expected), repr(answer.text))
            hold(answer.finish_reason == "stop", sent, "finish_reason stop", answer.finish_reason)
            streamed = "".join(client.stream(prompt, max_tokens=32, stop=[stop])[0])
            hold(streamed == expected, f"{sent}, streamed", repr(expected), repr(streamed))


@check(
    "What begins like a stop string and isn't one is shown, also at an answer's end; the first of several stops.",
    f"{LLAMA}/pull/15007",
)
def stop_strings_that_only_begin(client: ServerUnderTest) -> None:
    for prompt in TEXTS[:2]:
        text = client.complete(prompt, max_tokens=24).text
        unfinished = text[-3:] + "\u2620 never said"
        sent = f"{prompt[:30]!r}, stop={unfinished!r}"
        answer = client.complete(prompt, max_tokens=24, stop=[unfinished])
        hold(answer.text == text, sent, repr(text), repr(answer.text))
        hold(answer.finish_reason == "length", sent, "finish_reason length", answer.finish_reason)
        streamed = "".join(client.stream(prompt, max_tokens=24, stop=[unfinished])[0])
        hold(streamed == text, f"{sent}, streamed", repr(text), repr(streamed))
        late, early = text[12:16], text[6:9]
        expected = text[: min(text.index(late), text.index(early))]
        got = client.complete(prompt, max_tokens=24, stop=[late, early]).text
        hold(got == expected, f"{prompt[:30]!r}, stop={[late, early]!r}", repr(expected), repr(got))


@check("max_tokens is kept to the token, and usage counts what was used.")
def usage(client: ServerUnderTest) -> None:
    for count in (1, 2, 17):
        answer = client.complete(TEXTS[0], max_tokens=count)
        sent = f"max_tokens={count}"
        hold(answer.finish_reason == "length", sent, "finish_reason length", answer.finish_reason)
        hold(answer.completion_tokens == count, sent, f"{count} completion_tokens", answer.completion_tokens)
    if client.takes_token_ids:
        for length in (1, 40):
            used = client.complete([5] * length, max_tokens=1).prompt_tokens
            hold(used == length, f"a prompt of {length} token ids", f"{length} prompt_tokens", used)


# ------------------------------------------------------------------ bad input, and leaving


@check("Nonsense is refused with a 4xx, never a 500, and the next request is served.")
def nonsense(client: ServerUnderTest) -> None:
    for options in ({"max_tokens": "many"}, {"stop": 3}, {"temperature": "warm"}):
        _refused(client, str(options), TEXTS[0], **options)
    _refused(client, "a token id beyond the vocabulary", [10**9])
    _refused(client, "a negative token id", [-1])
    status = client.status_of(b'{"prompt": ')
    hold(400 <= status < 500, "half of a JSON object", "a 4xx", status)
    client.complete(TEXTS[0], max_tokens=2)


@check("Values that OpenAI's API doesn't have are refused with a 4xx: nobody gets another setting than was asked for.")
def values_out_of_range(client: ServerUnderTest) -> None:
    for options in ({"temperature": -1}, {"top_p": 7}, {"max_tokens": -5}):
        _refused(client, str(options), TEXTS[0], **options)
    client.complete(TEXTS[0], max_tokens=2)


def _refused(client: ServerUnderTest, sent: str, prompt: object, **options: object) -> None:
    status = client.status(prompt, **{"max_tokens": 2, **options})
    hold(400 <= status < 500, sent, "a 4xx", status)


@check("Clients that leave in the middle of a stream cost nothing afterwards: nothing runs, and others are served.")
def clients_that_leave(client: ServerUnderTest) -> None:
    with ThreadPoolExecutor(CROWD) as pool:
        list(pool.map(lambda i: client.leave(f"{i} {TEXTS[3]}", after=i % 5 - 1, max_tokens=500), range(3 * CROWD)))
    expected = client.complete(TEXTS[0], max_tokens=8).text
    hold(client.complete(TEXTS[0], max_tokens=8).text == expected, "after 48 that left", repr(expected), "another text")
    _rest(client, "48 clients that left")


@check("A short request that comes while a long answer streams is answered before that ends.")
def fairness(client: ServerUnderTest) -> None:
    client.known()  # another model might end its answer early
    begun, answered, ended = threading.Event(), threading.Event(), threading.Event()

    def stream() -> None:
        try:
            for _ in client.pieces(TEXTS[3], max_tokens=1_000):
                begun.set()
                if answered.is_set():
                    return  # what would still come says nothing more
        finally:
            ended.set()
            begun.set()

    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(stream)
        begun.wait()
        client.complete(TEXTS[0], max_tokens=2)
        was_over = ended.is_set()
        answered.set()
        long.result()  # a refusal is no answer that ended too early
        sent = "1,000 tokens streamed, then a request for 2"
        hold(not was_over, sent, "the 2 tokens before the last of the 1,000", "after them")


@check("After many requests nothing is held: the KV cache's gauge says 0.")
def leaks(client: ServerUnderTest) -> None:
    if client.kv_usage() is None:
        raise NotOfferedError("its /metrics has no kv_cache_usage_perc")
    _rest(client, "nothing yet")
    rng = random.Random(1)
    for _ in range(client.num_requests // CROWD):
        prompts = [f"{rng.choice(TEXTS)} {rng.randrange(1_000)}" for _ in range(CROWD)]
        together(client, prompts, max_tokens=rng.randint(1, 6))
    _rest(client, f"{client.num_requests} requests")


def _rest(client: ServerUnderTest, sent: str) -> None:
    """Within ten seconds nothing runs and no KV is held, where /metrics says so."""
    deadline = time.monotonic() + 10
    while (running := client.num_running()) or (client.kv_usage() or 0) > 0:
        hold(
            time.monotonic() < deadline, sent, "nothing running, no KV held", f"{running} running, {client.kv_usage()}"
        )
        time.sleep(0.1)


# ------------------------------------------------------------------ last: some servers are lost after it


@check("A prompt that doesn't fit is refused with a 4xx, and the next request is served.", f"{VLLM}/issues/39734")
def prompts_that_do_not_fit(client: ServerUnderTest) -> None:
    prompt = [5] * 50_000 if client.takes_token_ids else "word " * 50_000
    status = client.status(prompt, max_tokens=4)
    hold(400 <= status < 500, "a prompt of 50,000 tokens", "a 4xx", status)
    client.complete(TEXTS[0], max_tokens=2)
