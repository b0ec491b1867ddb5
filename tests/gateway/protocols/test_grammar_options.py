"""What an answer must match: every option that says so, and what each mistake is answered with."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from llguidance import LLMatcher

from engines.wire import Grammar
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.protocols.grammar_options import read_grammar

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
OF_SCHEMA = Grammar(kind="json_schema", source=json.dumps(SCHEMA, separators=(",", ":")))
OBJECT = Grammar(kind="json_object")


def named(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, **fields}}


@pytest.mark.parametrize(
    ("options", "read"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, OBJECT),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, OF_SCHEMA),
        ({"response_format": named()}, OF_SCHEMA),
        ({"response_format": named(strict=True, description="d")}, OF_SCHEMA),
        ({"response_format": named(strict=False)}, OF_SCHEMA),
        ({"response_format": named(schema=True)}, Grammar(kind="json_schema", source="true")),
        ({"json_schema": SCHEMA}, OF_SCHEMA),
        ({"grammar": 'start: "x"'}, Grammar(kind="lark", source='start: "x"')),
        ({"guided_json": SCHEMA}, OF_SCHEMA),
        ({"guided_json": json.dumps(SCHEMA)}, OF_SCHEMA),
        ({"guided_regex": "[a-z]+"}, Grammar(kind="regex", source="[a-z]+")),
        ({"guided_grammar": 'start: "x"'}, Grammar(kind="lark", source='start: "x"')),
        ({"guided_choice": ["yes", "né"]}, Grammar(kind="lark", source='start: "yes" | "né"')),
        ({"structured_outputs": {}}, None),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, OF_SCHEMA),
        ({"structured_outputs": {"json_object": True}}, OBJECT),
        ({"structured_outputs": {"json_object": False}}, None),
        ({"structured_outputs": {"regex": "a"}}, Grammar(kind="regex", source="a")),
        ({"structured_outputs": {"choice": ["a"]}}, Grammar(kind="lark", source='start: "a"')),
        ({"structured_outputs": {"grammar": "start: A"}}, Grammar(kind="lark", source="start: A")),
        ({"response_format": {"type": "text"}, "guided_regex": "a"}, Grammar(kind="regex", source="a")),
    ],
)
def test_grammar_is_read_and_knows_the_option_that_it_came_from(options: dict[str, Any], read: Grammar | None) -> None:
    assert read_grammar(options) == (None if read is None else msgspec.structs.replace(read, field=[*options][-1]))


def test_choices_are_a_grammar_of_these_texts_whatever_is_in_them() -> None:
    grammar = read_grammar({"guided_choice": ['say "x"', "back\\slash", "two\nlines", "é🦊", "\x01", "a|b # c"]})
    assert grammar is not None
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar.source)) == ""


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"response_format": "json"}, "response_format", "'json_object'"),
        ({"response_format": {}}, "response_format", "'json_object'"),
        ({"response_format": {"type": "json_object", "schema": 5}}, "response_format.schema", "JSON Schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "a name and a schema"),
        ({"response_format": named(name="a b")}, "response_format.json_schema.name", "1 to 64"),
        ({"response_format": named(name=None)}, "response_format.json_schema.name", "null"),
        ({"response_format": named(schema=None)}, "response_format.json_schema.schema", "JSON Schema"),
        ({"response_format": named(strict="yes")}, "response_format.json_schema.strict", "true or false"),
        ({"response_format": named(description=1)}, "response_format.json_schema.description", "a string"),
        ({"response_format": named(extra=1)}, "response_format.json_schema.extra", "unknown"),
        ({"json_schema": 5}, "json_schema", "JSON Schema"),
        ({"guided_json": "{"}, "guided_json", "its text"),
        ({"guided_json": "[1]"}, "guided_json", "its text"),
        ({"guided_regex": ""}, "guided_regex", "at least one character"),
        ({"guided_grammar": {}}, "guided_grammar", "a string"),
        ({"grammar": ""}, "grammar", "at least one character"),
        ({"guided_choice": []}, "guided_choice", "1 to 1000"),
        ({"guided_choice": "yes"}, "guided_choice", "1 to 1000"),
        ({"guided_choice": ["a"] * 1001}, "guided_choice", "1 to 1000"),
        ({"guided_choice": ["a", 1]}, "guided_choice[1]", "a string"),
        ({"structured_outputs": []}, "structured_outputs", "an object"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "unknown"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs.regex", "must hold one"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice[0]", "at least one"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex", "together with guided_json"),
        ({"grammar": "x", "response_format": {"type": "json_object"}}, "grammar", "together with response_format"),
    ],
)
def test_mistake_names_its_place_and_what_is_allowed(options: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_grammar(options)
    assert caught.value.param == param
    assert says in caught.value.message


def test_other_formats_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedParameter, match=r"response_format\.type is 'grammar'"):
        read_grammar({"response_format": {"type": "grammar", "grammar": "x"}})
