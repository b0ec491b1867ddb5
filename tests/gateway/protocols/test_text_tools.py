"""The shapes of ``/tokenize`` and ``/detokenize``, read and rendered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines.wire import ChatMessage, DecodeTokens, EncodeChat, EncodeText, TokenizerAnswer, Tool, ToolUse
from gateway.errors import InvalidRequest, RequestTooLarge, UnsupportedParameter
from gateway.protocols.options import Limits
from gateway.protocols.text_tools import (
    OPTIONS_OF,
    TOKENIZE_OPTIONS,
    parse_detokenize,
    parse_tokenize,
    render_detokenized,
    render_tokenized,
)
from gateway.registry.catalog import RequestSettings
from gateway.registry.reasoning_settings import ReasoningSettings

USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "yes"}
NONE = RequestSettings()


def tokenize(**body: Any) -> Any:
    return parse_tokenize(json.dumps(body).encode())


def test_prompt_is_plain_text_with_the_tokenizers_bos() -> None:
    request = tokenize(model="a", prompt="hi", return_token_strs=True)
    assert (request.model, request.strings, request.pieces) == ("a", True, None)
    assert request.what(NONE) == EncodeText(text="hi", add_special=True, parse_special=False)
    assert tokenize(prompt="", add_special_tokens=False).what(NONE) == EncodeText(
        text="", add_special=False, parse_special=False
    )


def test_content_has_llama_cpp_defaults() -> None:
    request = tokenize(content="hi")
    assert (request.model, request.pieces) == (None, False)
    assert request.what(NONE) == EncodeText(text="hi", add_special=False, parse_special=True)
    other = tokenize(content="hi", add_special=True, parse_special=False, with_pieces=True)
    assert other.pieces is True
    assert other.what(NONE) == EncodeText(text="hi", add_special=True, parse_special=False)


def test_messages_get_the_models_settings_and_the_requests_own_on_top() -> None:
    settings = RequestSettings(system="Be brief.", chat_template="theirs", chat_template_kwargs={"a": 1, "b": 1})
    what = tokenize(messages=[USER], chat_template_kwargs={"b": 2}).what(settings)
    assert isinstance(what, EncodeChat)
    assert what.add_special is True
    assert what.prompt.messages == (
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="hi"),
    )
    assert what.prompt.template == "theirs"
    assert what.prompt.template_kwargs == {"a": 1, "b": 2}
    own = tokenize(messages=[USER], chat_template="mine", add_special_tokens=False).what(settings)
    assert (own.prompt.template, own.add_special) == ("mine", False)


@pytest.mark.parametrize(
    ("last", "options", "begins", "continues"),
    [
        (USER, {}, True, True),
        (USER, {"add_generation_prompt": False}, False, True),
        (USER, {"continue_final_message": False}, True, True),
        (ANSWER, {}, False, True),  # as a chat goes on with it
        (ANSWER, {"continue_final_message": True}, False, True),
        (ANSWER, {"add_generation_prompt": False, "continue_final_message": True}, False, True),
        (ANSWER, {"continue_final_message": False}, True, False),
        (ANSWER, {"add_generation_prompt": True}, True, True),
        (ANSWER, {"add_generation_prompt": False, "continue_final_message": False}, False, False),
    ],
)
def test_messages_end_where_the_options_say(
    last: dict[str, str], options: dict[str, bool], begins: bool, continues: bool
) -> None:
    what = tokenize(messages=[USER, last], **options).what(NONE)
    assert (what.prompt.add_generation_prompt, what.continues) == (begins, continues)


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        ({}, "prompt", "prompt, messages or content"),
        ({"prompt": None}, "prompt", "missing"),
        ({"prompt": "x", "content": "x"}, "content", "only one of"),
        ({"prompt": 1}, "prompt", "is 1; it must be a string"),
        ({"prompt": ["x"]}, "prompt", "must be a string"),
        ({"content": {}}, "content", "must be a string"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "is missing"),
        ({"prompt": "x", "model": ""}, "model", "at least one character"),
        ({"prompt": "x", "model": 3}, "model", "is 3"),
        ({"prompt": "x", "add_special": True}, "add_special", "goes with content"),
        ({"prompt": "x", "chat_template": "t"}, "chat_template", "goes with messages, not with prompt"),
        ({"content": "x", "return_token_strs": True}, "return_token_strs", "goes with prompt or messages"),
        ({"messages": [USER], "with_pieces": True}, "with_pieces", "goes with content"),
        ({"prompt": "x", "return_token_strs": 1}, "return_token_strs", "true or false"),
        ({"content": "x", "parse_special": "no"}, "parse_special", "true or false"),
        ({"messages": [USER], "chat_template": ""}, "chat_template", "at least one character"),
        ({"messages": [USER], "chat_template_kwargs": []}, "chat_template_kwargs", "an object"),
        ({"messages": [USER], "continue_final_message": True}, "continue_final_message", "assistant"),
        (
            {"messages": [ANSWER], "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "must be false or absent",
        ),
    ],
)
def test_tokenize_wrong_value_is_400_naming_the_field(body: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as refusal:
        tokenize(**body)
    assert refusal.value.param == field


def test_tokenize_chat_with_tools_and_the_models_settings() -> None:
    request = tokenize(messages=[USER], tools=[{"type": "function", "function": {"name": "f"}}])
    settings = RequestSettings(reasoning=ReasoningSettings(enabled=False), tool_syntax="hermes", chat_template="own")
    what = request.what(settings)
    assert isinstance(what, EncodeChat)
    assert what.tools == ToolUse(tools=(Tool(name="f"),), syntax="hermes")
    assert (what.reasoning.enabled, what.prompt.template) == (False, "own")
    with pytest.raises(InvalidRequest, match=r"tools\[0\]\.type"):
        tokenize(messages=[USER], tools=[{}])


@pytest.mark.parametrize("body", [{"prompt": "x", "promt": 1}, {"messages": [USER], "mm_processor_kwargs": {"a": 1}}])
def test_tokenize_unknown_parameter_is_refused_by_name(body: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedParameter) as refusal:
        tokenize(**body)
    assert refusal.value.param == list(body)[1]


def test_every_option_belongs_to_a_kind() -> None:
    assert TOKENIZE_OPTIONS.honoured == {"model", *OPTIONS_OF}.union(*OPTIONS_OF.values())


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "x" * 11},
        {"content": "x" * 11},
        {"messages": [{"role": "user", "content": "x" * 11}]},
        {"messages": [USER], "chat_template": "x" * 11},
        {"messages": [USER], "chat_template_kwargs": {"k": "x" * 11}},
        {"messages": [USER], "tools": [{"type": "function", "function": {"name": "x" * 11}}]},
    ],
)
def test_tokenize_more_characters_than_allowed_is_413(body: dict[str, Any]) -> None:
    with pytest.raises(RequestTooLarge):
        parse_tokenize(json.dumps(body).encode(), Limits(max_chars=10))


def test_detokenize_takes_ids() -> None:
    request = parse_detokenize(b'{"model": "a", "tokens": [1, 2]}')
    assert (request.model, request.what) == ("a", DecodeTokens(tokens=(1, 2)))
    assert parse_detokenize(b'{"tokens": []}').model is None
    assert parse_detokenize(b'{"tokens": [5.0]}').tokens == (5,)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{}", "tokens"),
        (b'{"tokens": "x"}', "tokens"),
        (b'{"tokens": [1, -1]}', "tokens[1]"),
        (b'{"tokens": [true]}', "tokens[0]"),
        (b'{"tokens": [1.5]}', "tokens[0]"),
        (b'{"tokens": [2147483648]}', "tokens[0]"),
        (b'{"tokens": [1], "prompt": "x"}', "prompt"),
    ],
)
def test_detokenize_wrong_value_is_400_naming_the_field(body: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_detokenize(body)
    assert refusal.value.param == field


def test_detokenize_more_tokens_than_allowed_is_413() -> None:
    with pytest.raises(RequestTooLarge):
        parse_detokenize(b'{"tokens": [1, 2, 3]}', Limits(max_chars=2))


def test_render_vllm_shape() -> None:
    answer = TokenizerAnswer(tokens=(5, 6), texts=("a", "Ġb"))
    assert json.loads(render_tokenized(tokenize(prompt="x"), answer, 8192)) == {
        "count": 2,
        "max_model_len": 8192,
        "tokens": [5, 6],
        "token_strs": None,
    }
    told = json.loads(render_tokenized(tokenize(prompt="x", return_token_strs=True), answer, None))
    assert (told["token_strs"], told["max_model_len"]) == (["a", "Ġb"], None)


def test_render_llama_cpp_shape() -> None:
    answer = TokenizerAnswer(tokens=(5, 6), pieces=("é".encode(), b"\xf0\x9f"))
    assert json.loads(render_tokenized(tokenize(content="x"), answer, 1)) == {"tokens": [5, 6]}
    assert json.loads(render_tokenized(tokenize(content="x", with_pieces=True), answer, 1)) == {
        "tokens": [{"id": 5, "piece": "é"}, {"id": 6, "piece": [0xF0, 0x9F]}]
    }


def test_render_text_under_both_names() -> None:
    assert json.loads(render_detokenized(TokenizerAnswer(text="hi"))) == {"prompt": "hi", "content": "hi"}
