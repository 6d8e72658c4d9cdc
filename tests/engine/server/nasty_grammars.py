"""Schemas, grammars, regular expressions, choices and tools that are meant to hurt: those of public bug reports,
written down small, and what hypothesis makes of their parts."""

import json
from typing import Any

from hypothesis import strategies as st

I64 = 2**63
WORST = {"type": "integer", "minimum": -1e20, "maximum": -1e19}
"""llguidance 1.9.1 overflows its stack on it."""


def chain_of_references(length: int) -> dict[str, Any]:
    links = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}]} for i in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": {**links, f"a{length}": {"type": "null"}}}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def rules(length: int, name: str = "r", body: str = "{}") -> str:
    lines = [f"{name}{i}: {body.format(f'{name}{i + 1}')}" for i in range(length)]
    return "\n".join([f"start: {name}0", *lines, f'{name}{length}: "x"'])


def gbnf(length: int) -> str:
    return "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1}" for i in range(length)), f'r{length} ::= "x"'])


SCHEMAS: list[dict[str, Any]] = [
    WORST,
    {"type": "object", "properties": {"n": {**WORST, "exclusiveMinimum": -1e30}}},
    {"$ref": "#/hidden/n", "hidden": {"enum": [WORST], "n": {"allOf": [WORST]}}},
    *({"type": "integer", "minimum": low, "maximum": high} for low in (-I64, I64 - 1) for high in (I64 - 1, -I64, 5)),
    *({"type": "number", key: bound} for key in ("minimum", "maximum") for bound in (1e300, -1e300, 1e-300, -5e-324)),
    *({"type": "integer", "multipleOf": divisor} for divisor in (10**18, 1e300, 1e-300, 99_991, 0, -1, 9_999_999)),
    *({"type": "string", key: count} for key in ("minLength", "maxLength") for count in (2**31, 2**64, 1e300, -1, 0.5)),
    {"type": "array", "items": {"type": "array", "items": {"type": "null"}, "minItems": 3000}, "minItems": 3000},
    *(chain_of_references(length) for length in (150, 1000, 5000)),
    *(nested(levels) for levels in (45, 300)),
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}]},
    {"anyOf": [{"$ref": "#/anyOf/1"}, {"$ref": "#/anyOf/0"}]},
    {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": {"$ref": "#"}},
    {"$ref": "#/%00/~2/" + "a/" * 5000},
    {"enum": [f"value-{i}" for i in range(30_000)]},
    {"enum": ["x" * 200_000]},
    {"anyOf": [{"const": i} for i in range(3000)]},
    {"allOf": [{"anyOf": [{"properties": {f"k{i}{j}": {"minimum": j}}} for j in range(4)]} for i in range(9)]},
    {"allOf": [{"type": "string", "pattern": f"a.*b{i}.*c"} for i in range(12)]},
    {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(4000)}},
    {"type": "object", "patternProperties": {f"^{'a?' * i}$": {"type": "null"} for i in range(60)}},
    *(
        {"type": "string", "pattern": text}
        for text in ("(a{0,99}){0,99}" * 9, "(a|b|ab)*" * 50, "a?" * 900, "^(?!x)y$")
    ),
    {"type": "string", "pattern": "(" * 5000},
    {"type": "string", "format": "date-time", "minLength": 10**6},
    {"x-guidance": {"whitespace_pattern": "(a?){900}"}, "type": "object"},
    {"x-guidance": 5},
    {"minimum": True, "maximum": "5", "enum": 5, "properties": [], "required": {}, "items": 7},
    {"$anchor": "a", "items": {"$ref": "#a"}, "type": "array"},
    {"$id": "http://x/y", "properties": {"a": {"$ref": "http://x/y#/properties/a"}}},
    {"oneOf": [{"type": "null"}] * 50, "uniqueItems": True, "not": {}},
]
GRAMMARS = [
    "",
    "start: start",
    'start: "a" start | start "a" |',
    *(rules(length) for length in (150, 3000)),
    *(rules(length, "T") for length in (150, 3000)),
    *(rules(length, "r", '("a" {})?') for length in (150, 3000)),
    rules(40, "T", "{0} {0}"),
    rules(40, "r", "{0} {0} | {0}"),
    *(gbnf(length) for length in (150, 3000)),
    "root ::= " + "(" * 3000,
    "root ::= [^" + "a-" * 3000,
    'root ::= "a"{1,100000000}',
    "start: " + "(" * 90 + '"a"' + ")?" * 90,
    "start: " + " | ".join(f'"c{i}"' for i in range(20_000)),
    "start: %json " + json.dumps(WORST),
    "start: " + " ".join(["a?"] * 2000) + '\na: "x"',
    'start: a{1,100000}\na: b{0,100000}\nb: "x" | "y" b',
    "start: /" + "(.*a.{20}b.*|.*c.{25}d){1,50}" * 5 + "/",
    "start: (T|U|V)*\nT: /[a-z]*x[a-z]{60}/\nU: /[a-z ]*y.{90}/\nV: /.*z.{99}/",
    "start: %regex {}",
    "start: <[0-99999999999]> <nobody> @x",
    'start: T\nT: "a" & ~T',
    "%import common.INT\n%ignore /(a?){999}/\nstart: INT",
    '%llguidance {"no_forcing": false, "allow_initial_skip": true}\nstart: /x{100000}/',
    "%llguidance {",
    "\ud800",
    "start: /\x00*/",
]
REGEXES = [
    *(
        "a?" * 300,
        "a?" * 1000,
        "a?" * 16_000,
        "a?" * 20_000,
        "(a*)*" * 200,
        "(a|a)*" * 500,
        "x{800000}",
        "x{9999999999}",
    ),
    *("((a{0,99}){0,99}){0,99}", "(" * 3000, "(" * 90 + "a" + ")*" * 90, "[" * 3000, "(?i)" * 900, "\\", "\\p{L}{999}"),
    *("(.*a.{20}b.*|.*c.{25}d){1,50}", ".*a.{200}", "|".join(f"c{i}" for i in range(4000)), r"[^\s\S]", "^$", "(?!a)"),
]
CHOICES: list[list[str]] = [
    [f"c{i}" for i in range(30_000)],
    ["x" * 300_000],
    ["a" * n for n in range(1, 900)],
    ["", "\x00", "\ud83d", '"', "\\"],
]

small_numbers = st.sampled_from([0, -1, 1, 5, 0.1, 100, 10**6, True, None])
edges = st.sampled_from([2**31, I64 - 1, I64, 2**64, 1e18, 1e19, 1e20, 1e300, 1.7e308, 1e-9, 1e-300, 5e-324])
bounds = st.one_of(small_numbers, edges, edges.map(lambda number: -number), st.integers(), st.floats())
patterns = st.recursive(
    st.sampled_from(["a", ".", "[a-z]", r"\d", r"\w", "é", "🎉", "^", "$", " ", r"\b", "(?=a)", "[^x]", ""]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["?", "*", "+", "{3}", "{0,9}", "{1,500}", "{2,}", "{9999}"])).map(
            lambda two: f"({two[0]}){two[1]}"
        ),
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=4).map(lambda many: f"({'|'.join(many)})"),
        st.tuples(inner, st.integers(1, 60)).map(lambda two: two[0] * two[1]),
    ),
    max_leaves=12,
)
values = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=9), st.floats(allow_nan=False))
names = st.sampled_from(["a", "b", "é", "properties", "enum", "$ref", "x" * 70, ""])
references = st.sampled_from(
    ["#", "#/", "#/$defs/a", "#/$defs/b", "#/$defs/a/properties/a", "#/anyOf/0", "#a", "http://x/y", "#/definitions/é"]
)
leaves = st.one_of(
    st.builds(lambda ref: {"$ref": ref}, references),
    st.builds(
        lambda kind, rest: {"type": kind, **rest},
        st.sampled_from(["integer", "number", ["integer", "null"]]),
        st.dictionaries(
            st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
            bounds,
            max_size=3,
        ),
    ),
    st.builds(
        lambda rest: {"type": "string", **rest},
        st.fixed_dictionaries(
            {},
            optional={
                "minLength": bounds,
                "maxLength": bounds,
                "pattern": patterns,
                "format": st.sampled_from(["date", "uuid", "email", "ipv6", "uri", "regex", "bogus"]),
            },
        ),
    ),
    st.builds(lambda some: {"enum": some}, st.lists(values, max_size=5)),
    st.builds(lambda one: {"const": one}, values),
    st.sampled_from([{}, {"type": "null"}, {"type": "boolean"}, {"type": "bogus"}, {"not": {}}]),
)
parts = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(
            lambda some, rest: {"type": "object", "properties": some, **rest},
            st.dictionaries(names, inner, max_size=4),
            st.fixed_dictionaries(
                {},
                optional={
                    "required": st.lists(names, max_size=3),
                    "additionalProperties": inner | st.booleans(),
                    "patternProperties": st.dictionaries(patterns, inner, max_size=2),
                    "minProperties": bounds,
                    "maxProperties": bounds,
                },
            ),
        ),
        st.builds(
            lambda item, rest: {"type": "array", "items": item, **rest},
            inner,
            st.fixed_dictionaries(
                {},
                optional={
                    "minItems": bounds,
                    "maxItems": bounds,
                    "uniqueItems": st.booleans(),
                    "prefixItems": st.lists(inner, max_size=3),
                },
            ),
        ),
        st.builds(
            lambda key, some, rest: {key: some, **rest},
            st.sampled_from(["anyOf", "allOf", "oneOf"]),
            st.lists(inner, max_size=4),
            leaves | st.just({}),
        ),
    ),
    max_leaves=10,
)
schemas = st.builds(
    lambda root, defs: {**root, "$defs": defs}, parts, st.dictionaries(st.sampled_from("ab"), parts, max_size=2)
)
symbols = st.one_of(
    st.sampled_from(["a", "b", "c", "T", "U", '"x"', '"yes"', '""', "/[a-z]+/", "/.*/", "/(.|\\n)*/", "[0-9]"]),
    patterns.map(lambda text: f"/{text.replace('/', '')}/"),
    parts.map(lambda schema: f"%json {json.dumps(schema)}"),
)
expressions = st.recursive(
    symbols,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map(" ".join),
        st.lists(inner, min_size=2, max_size=4).map(lambda many: f"({' | '.join(many)})"),
        st.tuples(inner, st.sampled_from(["?", "*", "+", "{2,5}", "{0,1000}", "{7}"])).map(
            lambda two: f"({two[0]}){two[1]}"
        ),
    ),
    max_leaves=9,
)


def _written(start: str, define: str, some: dict[str, str]) -> str:
    return "\n".join(f"{name} {define} {body}" for name, body in {start: some.pop("start"), **some}.items())


bodies = st.fixed_dictionaries(
    {"start": expressions, "a": expressions, "b": expressions, "c": symbols, "T": expressions, "U": symbols}
)
grammars = st.one_of(
    bodies.map(lambda some: _written("start", ":", dict(some))),
    bodies.map(lambda some: _written("root", "::=", dict(some))),
)
regexes = patterns | st.text(alphabet="ab(){}[]|*+?.\\^$0,9-", max_size=40)
choices = st.lists(st.text(max_size=20) | st.text(alphabet="ab", max_size=300), max_size=9)


def tools_of(parameters: list[dict[str, Any]], choice: str, strict: bool) -> dict[str, Any]:
    functions = [{"name": f"f{i}", "parameters": one, "strict": strict} for i, one in enumerate(parameters)]
    return {"tools": [{"type": "function", "function": one} for one in functions], "tool_choice": choice}


def as_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


asked = st.one_of(
    schemas.map(as_format),
    schemas.map(lambda schema: {"guided_json": schema}),
    grammars.map(lambda text: {"guided_grammar": text}),
    regexes.map(lambda text: {"guided_regex": text}),
    choices.map(lambda some: {"guided_choice": some}),
    st.builds(tools_of, st.lists(schemas, max_size=3), st.sampled_from(["auto", "required"]), st.booleans()),
)
"""Fields of a chat request."""
CORPUS: list[dict[str, Any]] = [
    *(as_format(schema) for schema in SCHEMAS),
    *({"guided_grammar": text} for text in GRAMMARS),
    *({"guided_regex": text} for text in REGEXES),
    *({"guided_choice": some} for some in CHOICES),
    *(tools_of([schema, {}], choice, False) for schema in SCHEMAS for choice in ("auto", "required")),
    tools_of(
        [
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": schema}}
            for schema in SCHEMAS[:16]
        ],
        "auto",
        True,
    ),
]
