"""Grammars that are taken, refused and bounded, before any work is done for their request."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engines.errors import InvalidField
from engines.text.constraints.compiler import GrammarCompiler
from engines.text.constraints.source import LONGEST, source_of, written
from engines.wire import Grammar
from tests.engines.text.constraints.helpers_constraints import compiled, ids, vocabulary

RECURSIVE = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
UNSATISFIABLE: dict[str, Any] = {
    "false": False,
    "minLength over maxLength": {"type": "string", "minLength": 5, "maxLength": 2},
    "minimum over maximum": {"type": "integer", "minimum": 5, "maximum": 2},
    "minItems over maxItems": {"type": "array", "minItems": 5, "maxItems": 2},
    "an empty enum": {"enum": []},
    "no type": {"type": []},
    "two types at once": {"allOf": [{"type": "string"}, {"type": "integer"}]},
    "an enum of other types": {"type": "string", "enum": [1, 2]},
    "a required property that cannot be": {"type": "object", "properties": {"a": False}, "required": ["a"]},
    "a required property that may not be": {"type": "object", "required": ["a"], "additionalProperties": False},
    "a pattern longer than maxLength": {"type": "string", "pattern": "^a{10}$", "maxLength": 3},
    "itself": {"$ref": "#"},
    "endless": RECURSIVE,
}
UNSUPPORTED: dict[str, Any] = {
    "not": {"not": {"type": "string"}},
    "if": {"if": {"type": "string"}, "then": {"minLength": 2}},
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "oneOf that may overlap": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "an unknown format": {"type": "string", "format": "zork"},
    "an unknown type": {"type": "zork"},
    "a reference that points nowhere": {"$ref": "#/$defs/none"},
    "a reference to another document": {"$ref": "https://example.com/schema.json"},
    "a lookahead": {"type": "string", "pattern": "(?=a)b"},
    "not even a schema": [1],
    "options that would switch this off": {"not": {}, "x-guidance": {"lenient": True}},
}


@pytest.mark.parametrize("schema", [*UNSATISFIABLE.values(), *UNSUPPORTED.values()], ids=[*UNSATISFIABLE, *UNSUPPORTED])
def test_schema_that_cannot_be_enforced_names_the_field(schema: Any) -> None:
    with pytest.raises(InvalidField, match="response_format") as caught:
        compiled(Grammar(kind="json_schema", source=json.dumps(schema)))
    assert caught.value.param == "response_format"
    assert "<state>" not in caught.value.message


@pytest.mark.parametrize(
    ("kind", "source", "field"),
    [
        ("json_schema", "{", "response_format"),
        ("json_schema", '{"const": NaN}', "response_format"),
        ("regex", "(a", "guided_regex"),
        ("regex", r"(a)\1", "guided_regex"),
        ("regex", r"[^\s\S]", "guided_regex"),
        ("lark", "start: a", "guided_grammar"),
        ("lark", 'begin: "a"', "guided_grammar"),
        ("lark", "", "guided_grammar"),
        ("lark", "start: start", "guided_grammar"),
        ("lark", "start: <|nothing|>", "guided_grammar"),
        ("lark", 'start: %json {"not": {}}', "guided_grammar"),
        ("lark", "root ::= (", "guided_grammar"),
        ("lark", "root ::= " + "(" * 50_000, "guided_grammar"),
        ("lark", "root ::= missing", "guided_grammar"),
    ],
)
def test_broken_grammar_names_the_field_that_it_came_from(kind: Any, source: str, field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        compiled(Grammar(kind=kind, source=source, field=field))
    assert caught.value.param == field
    assert caught.value.message.startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (Grammar(kind="json_object"), ['{"a": [1, {"b": null}]}', "{}"], ["[]", '{"a":  1}', '{ "a": 1}', "{} "]),
        (Grammar(kind="json_schema", source="true"), ["1", '"a"'], ["a"]),
        (
            Grammar(kind="json_schema", source='{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'),
            ['{"a":1}', '{"a": 1,"b": "c"}', '{"a": 1, "b": 2}'],
            ['{"b": 1}', '{"a": 1.5}', '{\n"a": 1}'],
        ),
        (Grammar(kind="regex", source="[a-z]+(,[a-z]+)?"), ["a", "room,key"], ["", "1", "a,b,c"]),
        (Grammar(kind="lark", source='start: "key" num\nnum: /[0-9]+/'), ["key7"], ["key", "room"]),
        (Grammar(kind="lark", source='root ::= "key" room-no\nroom-no ::= [0-9]+'), ["key7"], ["key", "room"]),
    ],
)  # fmt: skip
def test_grammar_takes_what_matches_and_nothing_else(grammar: Grammar, good: list[str], bad: list[str]) -> None:
    compiled_grammar = compiled(grammar)
    for text in good:
        matcher = compiled_grammar.matcher()
        assert matcher.consume_tokens(ids(text)) and matcher.is_accepting(), text
    for text in bad:
        matcher = compiled_grammar.matcher()
        assert not (matcher.consume_tokens(ids(text)) and matcher.is_accepting()), text


def test_empty_answers_are_known_to_match() -> None:
    assert compiled(Grammar(kind="regex", source="a*")).accepts_nothing
    assert not compiled(Grammar(kind="regex", source="a+")).accepts_nothing


def test_oversized_grammar_is_refused_with_the_limit() -> None:
    with pytest.raises(InvalidField, match=str(LONGEST)):
        compiled(Grammar(kind="regex", source="a" * (LONGEST + 1)))


_DOUBLING = {
    f"d{i}": {
        "anyOf": [{"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"properties": {f"{side}{i}": {}}}]} for side in "xy"]
    }
    for i in range(16)
} | {"d16": {"type": "object"}}
_CHOICE = {"anyOf": [{"properties": {key: {"type": "integer"}}, "required": [key]} for key in "abcd"]}
_RULES = "\n".join(f"r{i}: r{i + 1}" for i in range(8000)) + '\nr8000: "a"'
HOSTILE: dict[str, Grammar] = {
    "nested repeats": Grammar(kind="regex", source="((a{1,1000}){1,1000}){1,1000}"),
    "a subset construction that doubles": Grammar(kind="regex", source="(a|b)*a(a|b){2000}"),
    "many of those at once": Grammar(
        kind="json_schema",
        source=json.dumps({"allOf": [{"type": "string", "pattern": f"(a|b|c)*{c}.{{40}}"} for c in "abcdefgh"]}),
    ),
    "a million characters": Grammar(kind="json_schema", source='{"type": "string", "minLength": 1000000}'),
    "a million items": Grammar(kind="json_schema", source='{"type": "array", "minItems": 1000000, "items": {}}'),
    "deep nesting": Grammar(kind="json_schema", source='{"items":' * 50_000),
    "deep closed nesting": Grammar(kind="json_schema", source='{"items":' * 900 + "{}" + "}" * 900),
    "references that double": Grammar(
        kind="json_schema", source=json.dumps({"$ref": "#/$defs/d0", "$defs": _DOUBLING})
    ),
    "a product of choices": Grammar(kind="json_schema", source=json.dumps({"allOf": [_CHOICE] * 12})),
    "thousands of optional properties": Grammar(
        kind="json_schema",
        source=json.dumps({"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(4500)}}),
    ),
    "thousands of choices": Grammar(kind="json_schema", source=json.dumps({"enum": [f"number {i}" for i in range(6000)]})),
    "a grammar that repeats for ever": Grammar(kind="lark", source='start: "a" start'),
    "every split of a text": Grammar(kind="lark", source='start: s\ns: s s | "a" | "aa" | "aaa"'),
    "a long grammar in GBNF": Grammar(kind="lark", source="root ::= " + '"a" | ' * 20_000 + '"a"'),
    "a chain of rules": Grammar(kind="lark", source="start: r0\n" + _RULES),
    "a chain of terminals": Grammar(kind="lark", source="start: R0\n" + _RULES.upper()),
    "a chain of references": Grammar(
        kind="json_schema",
        source=json.dumps(
            {
                "$ref": "#/$defs/d0",
                "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}]} for i in range(2500)} | {"d2500": True},
            }
        ),
    ),
    "empty lines": Grammar(kind="lark", source="start: A" + "\n" * 100_000),
    "nested repeats of rules": Grammar(kind="lark", source='start: x{1,1000}\nx: y{1,1000}\ny: "a"{1,1000}'),
}  # fmt: skip


@pytest.mark.parametrize("grammar", HOSTILE.values(), ids=HOSTILE)
def test_hostile_grammar_is_compiled_or_refused_in_bounded_time(grammar: Grammar) -> None:
    started = time.process_time()
    try:
        compiled(grammar)
    except InvalidField as refusal:
        assert refusal.param == grammar.field
    assert time.process_time() - started < 10


def test_compiled_grammar_is_kept_and_gives_every_row_its_own_matcher() -> None:
    compiler = GrammarCompiler(vocabulary())
    text = written(source_of(Grammar(kind="regex", source="ab+")))
    first = compiler.compile(text, "guided_regex")
    assert compiler.compile(text, "guided_regex") is first
    one, two = first.matcher(), first.matcher()
    assert one.consume_tokens(ids("ab"))
    assert two.try_consume_tokens(ids("b")) == 0
    assert two.consume_tokens(ids("a")) and not two.is_accepting() and one.is_accepting()


def test_a_refusal_names_the_field_of_each_request_that_meets_it() -> None:
    compiler = GrammarCompiler(vocabulary())
    text = written({"json_schema": {"not": {}}})
    for field in ("response_format", "tools[3].function.parameters"):
        with pytest.raises(InvalidField) as caught:
            compiler.compile(text, field)
        assert caught.value.param == field


def test_threads_take_matchers_of_one_grammar_at_once() -> None:
    grammar = compiled(Grammar(kind="json_object"))
    with ThreadPoolExecutor(4) as pool:
        matchers = list(pool.map(lambda _: grammar.matcher(), range(64)))
    assert all(matcher.consume_tokens(ids("{}")) for matcher in matchers)
