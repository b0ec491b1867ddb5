"""Capabilities, held against what the text engine itself reads out of templates and vocabularies."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.gguf.tokenizers import infill
from engines.header import GgufValueType, read_header
from engines.text.generic_tools import knows_tools
from engines.text.reasoning import FORMATS, reasoning_format, template_switches
from gateway.registry.capabilities import INFILL_KEYS, INFILL_TEXTS, capabilities_of, takes_effort
from tests.engines.helpers_gguf_bytes import array_pair, gguf, pair

FORMAT_TEMPLATES = ["{{ messages[0].content }}" + "".join(marks) for format in FORMATS for marks in format.told_by]
TOOL_TEMPLATES = [
    "{{ messages[0].content }}",
    "{% if tools %}{{ tools | tojson }}{% endif %}",
    "{%- for tool in available_tools -%}{{ tool.name }}{%- endfor -%}",
    "{% if xml_tools %}x{% endif %}",
    "{%- if not tools is defined %}{%- set tools = none %}{%- endif %}",
    "{% set tools = custom_tools %}{% if not tools is defined %}{% endif %}",
    "tools {{ messages }} tools",
    "{{ message.tools }}",
    "{{ 'tools' }}{{ \"tools\" }}",
    "{{ my_tools }}{{ tools_in_user_message }}",
    "",
]


def capabilities(template: str | None) -> tuple[str, ...]:
    return capabilities_of("text", template, {})


@pytest.mark.parametrize("template", FORMAT_TEMPLATES)
def test_thinking_is_what_the_engine_finds_a_format_for(template: str) -> None:
    assert reasoning_format(template) is not None
    assert capabilities(template) == ("completion", "thinking")


@pytest.mark.parametrize(
    "template",
    [
        "{{ reasoning_effort }}",
        "{%- if thinking_effort == 'low' %}x{% endif %}",
        "{{ message.reasoning_effort }} reasoning_effort {{ 'reasoning_effort' }}",
        "{{ my_reasoning_effort }}",
        "",
    ],
)
def test_effort_is_what_the_engine_sees_a_variable_for(template: str) -> None:
    assert takes_effort(template) == (template_switches(template).effort is not None)


@pytest.mark.parametrize("template", TOOL_TEMPLATES)
def test_tools_are_what_the_engine_sees_a_variable_for(template: str) -> None:
    assert ("tools" in capabilities(template)) == knows_tools(template)


def test_settings_that_name_a_syntax_mean_tools() -> None:
    assert capabilities_of("text", None, {}, calls=True) == ("completion", "tools")


def test_infill_tokens_are_those_of_the_engine() -> None:
    assert tuple(infill._ROLES) == tuple(zip(INFILL_KEYS, INFILL_TEXTS, strict=True))


TOKENS = "tokenizer.ggml.tokens"


@pytest.mark.parametrize(
    ("tokens", "keys", "fills"),
    [
        (["a", "<fim_prefix>", "<|fim_suffix|>", "<MID>"], [], True),
        (["a", "<fim_prefix>", "<|fim_suffix|>"], [], False),
        (["a", "b", "<|fim_suffix|>"], ["fim_pre_token_id", "middle_token_id"], True),
        (["a", "b", "c"], ["prefix_token_id", "suffix_token_id", "middle_token_id"], True),
        (["a", "b", "c"], ["prefix_token_id", "suffix_token_id"], False),
    ],
)
def test_insert_is_a_vocabulary_with_all_three_tokens(
    tmp_path: Path, tokens: list[str], keys: list[str], fills: bool
) -> None:
    kinds = GgufValueType
    named = [pair(f"tokenizer.ggml.{key}", kinds.UINT32, i) for i, key in enumerate(keys)]
    file = tmp_path / "x.gguf"
    file.write_bytes(gguf([array_pair(TOKENS, kinds.STRING, tokens), *named]))
    assert ("insert" in capabilities_of("text", None, read_header(file).metadata)) == fills


def test_other_kinds_have_their_own() -> None:
    assert capabilities_of("embedding", "{{ tools }}", {}) == ("embedding",)
    assert capabilities_of("vision", None, {}) == ("completion", "vision")
    assert capabilities_of("tts", None, {}) == ()
