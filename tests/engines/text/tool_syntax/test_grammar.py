"""Each syntax's grammar lets its golden calls through, and no others."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.text.tool_syntax import SYNTAXES
from engines.wire import Tool
from tests.engines.text.tool_syntax.helpers_golden import CASES, TOOLS, UNMARKED, WRITERS, Call, read, syntax
from tests.engines.text.tool_syntax.helpers_matcher import Vocabulary

NAMES = [each.name for each in SYNTAXES]
# Values that are text or literals of their own: only these syntaxes write them otherwise than JSON.
PYTHONIC = {"llama4", "lfm2", "gemma3"}


@lru_cache(64)
def vocabulary(name: str, special: bool) -> Vocabulary:
    return Vocabulary(syntax(name).marks if special else ())


def written(name: str, calls: list[Call]) -> str:
    """As the model writes them, but for literals that the grammar spells as JSON does."""
    text = WRITERS[name](calls)
    if name not in PYTHONIC:
        return text
    if calls == CASES["nested"]:
        return text.replace("False", "false").replace("None", "null").replace("'", '"')
    return text.replace("'", '"')


def grammar(
    name: str, special: bool, *, parallel: bool = True, required: bool = True, tools: tuple[Tool, ...] = TOOLS
) -> str:
    text = syntax(name).grammar(tools, parallel=parallel, special=vocabulary(name, special).special, required=required)
    assert text is not None
    return text


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_grammar_compiles(name: str, special: bool) -> None:
    assert vocabulary(name, special).errors(grammar(name, special)) == []


@pytest.mark.parametrize("case", sorted(set(CASES) - {"brackets", "lines"}))
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_golden_calls_pass(name: str, special: bool, case: str) -> None:
    text = written(name, CASES[case])
    if name == "harmony":
        text = text.removesuffix("<|call|>")  # a token that ends the model's turn
        if case == "parallel":
            return  # one message a turn
    assert vocabulary(name, special).accepted(grammar(name, special), text) == (text, True)
    assert read(text, syntax(name)).parsed == CASES[case]


@pytest.mark.parametrize("name", NAMES)
def test_what_the_schema_forbids_does_not_pass(name: str) -> None:
    refused: list[Call] = [
        ("weather", {"city": "Oslo", "unit": "kelvin"}),
        ("weather", {"city": "Oslo", "days": "three"}),
        ("weather", {"days": 3}),
        ("ping", {"city": "Oslo"}),
        ("made_up", {}),
    ]
    for call in refused:
        text = written(name, [call])
        assert vocabulary(name, True).accepted(grammar(name, True), text)[0] != text, call


@pytest.mark.parametrize("name", NAMES)
def test_only_the_named_function_passes(name: str) -> None:
    only = tuple(tool for tool in TOOLS if tool.name == "search")
    text = written(name, CASES["single"])
    assert vocabulary(name, True).accepted(grammar(name, True, tools=only), text)[0] != text


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"harmony"}))
def test_one_call_at_a_time(name: str) -> None:
    text = written(name, CASES["parallel"])
    alone = written(name, CASES["parallel"][:1])
    one = grammar(name, True, parallel=False)
    assert vocabulary(name, True).accepted(one, text)[0] != text
    assert vocabulary(name, True).accepted(one, alone) == (alone, True)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", sorted(set(NAMES) - UNMARKED - {"harmony"}))
def test_free_text_may_surround_calls_and_calls_are_valid(name: str, special: bool) -> None:
    free = grammar(name, special, required=False)
    words = vocabulary(name, special)
    assert words.errors(free) == []
    for text in ("Hello.", f"I look.\n{written(name, CASES['parallel'])}", written(name, CASES["single"])):
        assert words.accepted(free, text) == (text, True)
    wrong = f"I look.\n{written(name, [('made_up', {})])}"
    assert words.accepted(free, wrong)[0] != wrong


@pytest.mark.parametrize("name", ["llama3", "llama4"])
def test_free_text_is_told_by_its_first_character(name: str) -> None:
    free = grammar(name, False, required=False)
    words = vocabulary(name, False)
    for text in ("Hello {x} [y].", "", "\n Hi", written(name, CASES["parallel"])):
        assert words.accepted(free, text) == (text, True)
    wrong = written(name, [("made_up", {})])
    assert words.accepted(free, wrong)[0] != wrong


@pytest.mark.parametrize("name", ["glm4", "functionary_v32", "harmony"])
def test_no_grammar_where_text_cannot_be_told_from_calls(name: str) -> None:
    assert syntax(name).grammar(TOOLS, parallel=True, special={}, required=False) is None


def test_whitespace_may_not_go_on_for_ever() -> None:
    text = grammar("hermes", False)
    begin = '<tool_call>\n{"name": "weather", "arguments": {'
    assert vocabulary("hermes", False).accepted(text, begin + "\n" * 100)[0] != begin + "\n" * 100


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "minimax_m2", "gemma4", "function_gemma"])
@pytest.mark.parametrize(
    ("value", "passes"), [("AB-1", True), ("AB-12", True), ("ab-1", False), ("AB-", False), ("AB-1234", False)]
)
def test_patterns_and_lengths_of_text_values(name: str, value: str, passes: bool) -> None:
    tool = Tool(
        name="order",
        parameters={
            "type": "object",
            "properties": {"code": {"type": "string", "pattern": "^[A-Z]+-[0-9]+$", "maxLength": 5}},
            "required": ["code"],
        },
    )
    text = WRITERS[name]([("order", {"code": value})])
    for special in (False, True):
        accepted = vocabulary(name, special).accepted(grammar(name, special, tools=(tool,)), text)
        assert (accepted == (text, True)) is passes


@pytest.mark.parametrize("name", NAMES)
def test_schemas_of_every_kind_compile(name: str) -> None:
    tools = (
        Tool(name="open", parameters={"type": "object"}),
        Tool(name="choice", parameters={"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        Tool(
            name="tree",
            parameters={
                "type": "object",
                "properties": {"root": {"$ref": "#/$defs/Node"}, "any": {}, "yes": True, "no_type": {"enum": [1, "a"]}},
                "required": ["root", "undeclared"],
                "$defs": {
                    "Node": {
                        "type": "object",
                        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
                    }
                },
            },
        ),
    )
    for special in (False, True):
        assert vocabulary(name, special).errors(grammar(name, special, tools=tools)) == []


_ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["string", "object", "#/$defs/a", "array", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "required",
                    "enum",
                    "const",
                    "$ref",
                    "$defs",
                    "pattern",
                    "maxLength",
                    "a",
                    "x-guidance",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "glm45", "minimax_m2", "gemma4", "llama4"])
@given(parameters=st.dictionaries(st.sampled_from(["type", "properties", "required", "$defs", "anyOf"]), _ODD))
def test_odd_schemas_are_left_to_llguidance_to_refuse(name: str, parameters: dict[str, Any]) -> None:
    tool = Tool(name="odd", parameters=parameters)
    assert "odd" in grammar(name, False, tools=(tool,))
    read(WRITERS[name]([("odd", {"a": "1"})]), syntax(name), tools=(tool,))


@pytest.mark.parametrize("name", NAMES)
def test_options_of_the_grammar_in_a_schema_are_ignored(name: str) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {}}}, "required": ["a"], "x-guidance": {"lenient": True}}
    assert "lenient" not in grammar(name, False, tools=(Tool(name="f", parameters=schema),))
