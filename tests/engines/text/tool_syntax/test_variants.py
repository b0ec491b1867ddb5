"""What models write beside the form of their template, and what looks like a call and is none."""

from __future__ import annotations

import pytest

from engines.text.output import CallStart, output_parser
from tests.engines.text.tool_syntax.helpers_golden import TOOLS, Call, read, syntax, zeros

OSLO: list[Call] = [("weather", {"city": "Oslo"})]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}'),  # no closing mark
        ("hermes", '<tool_call>{"arguments": {"city": "Oslo"}, "name": "weather"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}</tool_call>'),
        ("hermes", '<tool_call>{"type": "function", "function": {"name": "weather", "parameters": {"city": "Oslo"}}}'),
        ("hermes", '<tool_call>{"function": {"name": "weather", "arguments": {"city": "Oslo"}}, "id": 1}'),
        ("llama3", '{"type": "function", "name": "weather", "parameters": {"city": "Oslo"}}'),
        ("llama3", '<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo"}}'),
        ("llama3", '{"function": "weather", "parameters": {"city": "Oslo"}}'),
        ("llama4", '<|python_start|>[weather(city="Oslo")]<|python_end|>'),
        ("llama4", '{"name": "weather", "parameters": {"city": "Oslo"}}'),
        ("mistral", '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}, "id": "abcdefghi"}]'),
        ("mistral", '[TOOL_CALLS]weather{"city": "Oslo"}'),
        ("mistral", '[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{"city": "Oslo"}'),
        ("mistral_array", '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}'),
        ("deepseek_v31", '<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"city": "Oslo"}\n```<｜tool▁call▁end｜>'),
        ("granite", '<tool_call>[{"name": "weather", "arguments": {"city": "Oslo"}}]'),
        ("granite", '<|tool_call|>{"name": "weather", "arguments": {"city": "Oslo"}}'),
        ("phi4", 'functools[{"name": "weather", "arguments": {"city": "Oslo"}}]'),
        ("phi4", '<|tool_call|>{"name": "weather", "arguments": {"city": "Oslo"}}<|/tool_call|>'),
        ("command", '<|START_ACTION|>{"tool_name": "weather", "parameters": {"city": "Oslo"}}<|END_ACTION|>'),
        ("command_r", 'Action: ```json\n[{"tool_name": "directly-answer", "parameters": {}}, '
                      '{"tool_name": "weather", "parameters": {"city": "Oslo"}}]\n```'),
        ("minimax_m1", '<tool_calls>[{"name": "weather", "arguments": {"city": "Oslo"}}]</tool_calls>'),
        ("qwen3_coder", "<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>"),
        ("glm45", "<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>"),
        ("glm45", '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'),
        ("kimi_k2", '<|tool_call_begin|>weather<|tool_call_argument_begin|>{"city": "Oslo"}'),
        ("functionary_v32", '>>>weather\n{"city": "Oslo"}'),
        ("gemma4", '<|tool_call>call:weather{<|"|>city<|"|>: <|"|>Oslo<|"|>}'),
        ("function_gemma", "<start_function_call>call:weather{city:Oslo}"),
    ],
)  # fmt: skip
def test_other_ways_to_write_a_call(name: str, text: str) -> None:
    for pieces in ([text], list(text)):
        answer = read(text, syntax(name), pieces=pieces)
        assert (answer.parsed, answer.content) == (OSLO, "")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\\\ud800\\"}x"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        ("hermes", "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>"),
        ("llama3", '{"name": "Ada", "age": 36}'),
        ("llama3", '{"name": "weather", "age": 36}'),
        ("llama3", '{"name": "weather"}'),
        ("llama3", '{"answer": {"city": "Oslo"}}'),
        ("llama3", "<|python_tag|>import math\nprint(1)"),
        ("llama4", "[1, 2, 3]"),
        ("llama4", "[weather] is a list"),
        ("mistral", "[TOOL_CALLS] is a token"),
        ("mistral", "[TOOL_CALLS][1, 2]"),
        ("functionary_v32", ">>> print(1)\n1"),
        ("glm4", "weather\nis fine"),
        ("command_r", "Action: take a break."),
        ("qwen3_coder", "<tool_call>\n<function=>\n</function></tool_call>"),
        ("kimi_k2", "<|tool_call_begin|>a b c<|tool_call_argument_begin|>{}"),
        ("minimax_m2", "<minimax:tool_call></minimax:tool_call>"),
    ],
)
def test_what_looks_like_a_call_and_is_none_is_content(name: str, text: str) -> None:
    for pieces in ([text], list(text)):
        answer = read(text, syntax(name), pieces=pieces)
        assert (answer.calls, answer.broken, answer.content) == ([], [], text)


def test_a_call_within_a_broken_one_is_found() -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
    text = f'<tool_call>{{"name: {call}'
    for pieces in ([text], list(text)):
        answer = read(text, syntax("hermes"), pieces=pieces)
        assert (answer.parsed, answer.content) == (OSLO, '<tool_call>{"name: ')


def test_arguments_that_stop_being_json_leave_a_broken_call_and_content() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo", oops}}</tool_call>'
    answer = read(text, syntax("hermes"))
    assert (answer.broken, answer.content) == ([("weather", '{"city": "Oslo", ')], "oops}}</tool_call>")
    assert read(text, syntax("hermes"), whole=True).content == text


@pytest.mark.parametrize(
    ("name", "text", "rest"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}, oops}', ", oops}"),
        ("qwen3_coder", "<tool_call><function=f>\n<parameter=a b>", "\n<parameter=a b>"),
        ("lfm2", "<|tool_call_start|>[f(a=1, b=oops)]", ", b=oops)]"),
    ],
)
def test_what_follows_in_a_call_that_stopped_being_one_is_content(name: str, text: str, rest: str) -> None:
    for pieces in ([text + " Sorry."], [*text, " Sorry."]):
        answer = read(text + " Sorry.", syntax(name), pieces=pieces)
        assert [called for called, _ in answer.broken] == ["f"]
        assert answer.content == rest + " Sorry."


def test_functionary_speaks_to_all() -> None:
    text = 'all\nI will look.\n>>>weather\n{"city": "Oslo"}'
    answer = read(text, syntax("functionary_v32"))
    assert (answer.content, answer.parsed) == ("I will look.", OSLO)


@pytest.mark.parametrize(
    ("name", "text", "call_id"),
    [
        ("hermes", '<tool_call>{"name": "f"}', "call_" + "00" * 12),
        ("mistral", "[TOOL_CALLS]f[ARGS]{}", "000000000"),
        ("mistral", "[TOOL_CALLS]f[CALL_ID]aB3dE6gH9[ARGS]{}", "aB3dE6gH9"),
        ("kimi_k2", "<|tool_call_begin|>functions.f:7<|tool_call_argument_begin|>{}", "functions.f:7"),
        ("kimi_k2", "<|tool_call_begin|>f<|tool_call_argument_begin|>{}", "functions.f:0"),
    ],
)
def test_ids(name: str, text: str, call_id: str) -> None:
    starts = [part for part in read(text, syntax(name)).parts if isinstance(part, CallStart)]
    assert [start.id for start in starts] == [call_id]


def test_mistral_ids_are_nine_letters_and_digits() -> None:
    call_id = syntax("mistral").call_id(0, "f", lambda count: bytes(range(200, 200 + count)))
    assert len(call_id) == 9 and call_id.isalnum() and call_id.isascii()


def test_ids_differ_by_chance_alone() -> None:
    text = '<tool_call>{"name": "f"}</tool_call>' * 2
    ids = [part.id for part in output_parser(None, syntax("hermes"), TOOLS).feed(text) if isinstance(part, CallStart)]
    assert len(set(ids)) == 2
    again = output_parser(None, syntax("hermes"), TOOLS, random=zeros).feed(text)
    assert len({part.id for part in again if isinstance(part, CallStart)}) == 1
