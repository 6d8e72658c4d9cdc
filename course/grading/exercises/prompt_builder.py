"""A cache-friendly prompt: what successive prompts share must stand at their beginning."""

import copy
import json
import random
from typing import Any

from course.grading.tools import Answer, Mistake, expect, shown
from course.grading.tools import text as read_text

Tool = dict[str, Any]
Request = dict[str, Any]
"""system, tools, handbook, user, history, question, now: see the statement."""

VERBATIM = ("system", "handbook", "user", "question", "now")
BLOCK = 16
"""Characters per block of the cache that is played: small, so that little is lost at a block's end."""
GOOD_SHARE = 0.95
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "juniper", "kelp", "linden")


def sentence(rng: random.Random, words: int) -> str:
    """Word for word means blanks, line ends and letters of all kinds, too."""
    return "  " + " ".join(rng.choice(WORDS) for _ in range(words)) + f' \n"é\t{rng.randrange(10**6)}".\n'


def some_tools(rng: random.Random, count: int = 4) -> list[Tool]:
    names = rng.sample(WORDS, count)
    return [
        {
            "name": f"{name}_tool",
            "description": sentence(rng, 5),
            "parameters": {
                "type": "object",
                "properties": {each: {"type": "string", "enum": rng.sample(WORDS, 3)} for each in rng.sample(WORDS, 2)},
                "required": rng.sample(WORDS, 2),
                "examples": [{each: rng.randrange(9) for each in rng.sample(WORDS, 3)}],
            },
        }
        for name in names
    ]


def shuffled(value: Any, rng: random.Random, is_outer: bool = True) -> Any:
    """The same tools with keys in another order, at every depth; lists inside keep theirs."""
    if isinstance(value, dict):
        return {key: shuffled(value[key], rng, False) for key in rng.sample(list(value), len(value))}
    if isinstance(value, list):
        items = [shuffled(each, rng, False) for each in value]
        return rng.sample(items, len(items)) if is_outer else items
    return value


def clock(rng: random.Random) -> str:
    day = f"2025-{rng.randint(1, 12):02d}-{rng.randint(10, 28)}"
    return f"{day} {rng.randint(10, 23)}:{rng.randint(10, 59)}:{rng.randint(10, 59)}"


def some_request(rng: random.Random) -> Request:
    return {
        "system": sentence(rng, 12),
        "tools": some_tools(rng),
        "handbook": sentence(rng, 40),
        "user": f"user: {rng.choice(WORDS)} {rng.randrange(10**6)}",
        "history": [sentence(rng, 8), *[sentence(rng, 8)] * 2, *(sentence(rng, 8) for _ in range(rng.randint(1, 2)))],
        "question": sentence(rng, 6),
        "now": clock(rng),
    }


def later(request: Request, rng: random.Random, **changes: Any) -> Request:
    """Another request: another question at another time, tools in another order, and what is changed besides."""
    new = {"question": sentence(rng, 6), "now": clock(rng), "tools": shuffled(request["tools"], rng)}
    return {**copy.deepcopy(request), **new, **changes}


def next_turn(request: Request, rng: random.Random) -> Request:
    return later(request, rng, history=[*request["history"], request["question"], sentence(rng, 8)])


def other_user(request: Request, rng: random.Random) -> Request:
    return later(request, rng, user=f"user: {rng.choice(WORDS)} {rng.randrange(10**6)}", history=[sentence(rng, 8)] * 2)


def other_tenant(request: Request, rng: random.Random) -> Request:
    return {**other_user(request, rng), "handbook": sentence(rng, 40)}


CHANGES = {"later": later, "next turn": next_turn, "other user": other_user, "other tenant": other_tenant}


def rendered(answer: Answer, tools: list[Tool]) -> str:
    return read_text(answer.render_tools(tools), "render_tools(...)")


def built(answer: Answer, request: Request) -> str:
    return read_text(answer.build_prompt(request), "build_prompt(...)")


def by_name(tools: list[Tool]) -> list[Tool]:
    return sorted(tools, key=lambda tool: tool["name"])


def one_order(answer: Answer, rng: random.Random) -> None:
    for _ in range(6):
        tools = some_tools(rng, rng.randint(2, 5))
        first = rendered(answer, tools)
        check_same_tools(tools, first)
        for _ in range(3):
            other = shuffled(tools, rng)
            text = rendered(answer, other)
            if text == first:
                continue
            names = [[tool["name"] for tool in each] for each in (tools, other)]
            is_order = rendered(answer, by_name(other)) == rendered(answer, by_name(tools))
            fields = {"names": names[0], "others": names[1], "first": shown(first), "text": shown(text)}
            raise Mistake("same_tools_two_texts", slip="tools_unsorted" if is_order else "keys_unsorted", **fields)
    expect(rendered(answer.elsewhere(), tools) == rendered(answer, tools), "text_differs_between_processes")
    rendered(answer, [])


def check_same_tools(tools: list[Tool], text: str) -> None:
    try:
        back = json.loads(text)
    except ValueError:
        raise Mistake(f"render_tools should give back JSON; yours is {shown(text)}") from None
    are_tools = isinstance(back, list) and all(isinstance(tool, dict) and "name" in tool for tool in back)
    expect(are_tools, f"render_tools should give back a JSON list of the tools; yours is {shown(text)}")
    if by_name(back) == by_name(tools):
        return
    missing = [tool["name"] for tool in tools if tool["name"] not in [each["name"] for each in back]]
    if missing:
        raise Mistake(f"the tool {missing[0]} is missing from {shown(text)}")
    expect(len(back) == len(tools), f"{len(back)} tools came back of {len(tools)}: is one in it twice?")
    tool, other = next(pair for pair in zip(by_name(tools), by_name(back)) if pair[0] != pair[1])
    same_letters = sorted(json.dumps(tool)) == sorted(json.dumps(other))
    expect(not same_letters, "sorted_a_list", tool=tool["name"])
    raise Mistake(f"of {tool['name']} something is missing or changed: {shown(other)}, expected {shown(tool)}")


def all_there(answer: Answer, rng: random.Random) -> None:
    for request in [*(some_request(rng) for _ in range(4)), {**some_request(rng), "history": [], "tools": []}]:
        prompt = built(answer, request)
        parts = pieces(answer, request)
        for key, part in parts.items():
            expect(part in prompt, f"the prompt lacks {key}: {shown(part)} must be in it, word for word")
        at = 0
        for turn in request["history"]:
            expect(prompt.find(turn, at) >= 0, "reordered_history")
            at = prompt.find(turn, at) + len(turn)
        needed, size = sum(map(len, parts.values())), len(prompt)
        expect(size <= 2 * needed + 1000, "prompt_too_long", size=size, needed=needed)


def pieces(answer: Answer, request: Request) -> dict[str, str]:
    found = {key: request[key] for key in VERBATIM}
    found["the tools, as render_tools gives them"] = rendered(answer, request["tools"])
    found.update((f"history turn {i + 1}", turn) for i, turn in enumerate(request["history"]))
    return found


def judge_pair(answer: Answer, before: Request, after: Request, what: str) -> None:
    """Whatever both requests have must stand within what both prompts begin with."""
    prompts = built(answer, before), built(answer, after)
    common = next((i for i, (a, b) in enumerate(zip(*prompts)) if a != b), min(map(len, prompts)))
    parts = pieces(answer, before), pieces(answer, after)
    alike = {
        key: text for key, text in parts[0].items() if parts[1].get(key) == text and key not in ("question", "now")
    }
    late = {key: prompts[1].find(text) for key, text in alike.items()}
    lost = [key for key, at in late.items() if at < 0 or at + len(alike[key]) > common]
    if not lost:
        return
    size = sum(len(alike[key]) for key in lost)
    fields = {"what": what, "common": common, "total": len(prompts[1]), "lost": ", ".join(lost), "size": size}
    found = {key: (prompts[1].find(text), len(text)) for key, text in parts[1].items() if key not in alike}
    culprits = [key for key, (at, length) in found.items() if 0 <= at <= common <= at + length]
    if culprits:
        raise Mistake("prompts_part_too_early", culprit=culprits[0], **fields)
    raise Mistake("prompts_part_too_early_there", there=shown(prompts[1][max(common - 20, 0) : common + 20]), **fields)


def pairs(answer: Answer, rng: random.Random, change: str, what: str) -> None:
    for _ in range(4):
        request = some_request(rng)
        judge_pair(answer, request, CHANGES[change](request, rng), what)


def refuse_to_remember(answer: Answer, rng: random.Random) -> None:
    request = some_request(rng)
    first = built(answer, request)
    grown = {**request, "tools": [*request["tools"], *some_tools(rng, 1)]}
    text = built(answer, grown)
    if rendered(answer, grown["tools"]) not in text or grown["tools"][-1]["name"] not in text:
        raise Mistake("a tool was added, and the next prompt does not have it: is the text of the first ones kept?")
    expect(built(answer, request) == first, "second_call_differs")
    expect(built(answer.elsewhere(), request) == first, "text_differs_between_processes")


def a_morning(answer: Answer, rng: random.Random) -> str:
    """Traffic of two tenants, their users and turns, played to a cache of blocks."""
    open_chats = [some_request(rng)]
    for _ in range(5):
        open_chats.append(rng.choice((other_user, other_tenant))(rng.choice(open_chats), rng))
    requests = []
    for _ in range(36):
        i = rng.randrange(len(open_chats))
        open_chats[i] = next_turn(open_chats[i], rng)
        requests.append(open_chats[i])
    theirs = found_share([built(answer, request) for request in requests])
    ours = found_share([reference(request) for request in requests])
    if theirs < GOOD_SHARE * ours:
        raise Mistake("cache_found_too_little", share=round(min(theirs / ours, 1) * 0.5, 2), theirs=theirs, ours=ours)
    return f"{theirs:.0%} of a morning's characters were found in a cache"


def reference(request: Request) -> str:
    tools = json.dumps(by_name(request["tools"]), sort_keys=True)
    parts = [request["system"], tools, request["handbook"], request["user"], *request["history"]]
    return "\n".join([*parts, request["question"], request["now"]])


def found_share(prompts: list[str]) -> float:
    known: set[str] = set()
    found = 0
    for prompt in prompts:
        prefixes = [prompt[:end] for end in range(BLOCK, len(prompt) + 1, BLOCK)]
        found += BLOCK * sum(prefix in known for prefix in prefixes)
        known.update(prefixes)
    return found / sum(map(len, prompts))
