"""Cohere's actions: a fenced array in Command R and R+, an array between control tokens since Command R7B."""

from __future__ import annotations

from collections.abc import Sequence

from engines.text.output.calls import CallStream
from engines.text.tool_syntax.json_form import read_array, read_object
from engines.text.tool_syntax.lark import Lark
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.wire import Tool

__all__ = ["Command", "CommandR"]

_OPEN, _CLOSE = "<|START_ACTION|>", "<|END_ACTION|>"


class Command(ToolSyntax):
    """The model numbers its calls; a client's ids are ours."""

    name = "command"
    models = "Command R7B, Command A"
    example = (
        "<|START_ACTION|>[\n"
        '    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Oslo"}}\n'
        "]<|END_ACTION|>"
    )
    marks = (_OPEN, _CLOSE)
    closes_thinking = True

    def matches(self, template: str) -> bool:
        return _OPEN in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=(_OPEN,))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        yield from reader.expect(trigger)
        yield from reader.space()
        yield from (read_object if (yield from reader.peek()) == "{" else read_array)(calls)
        yield from reader.space()
        yield from reader.accept(_CLOSE)

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        number = lark.terminal("/[0-9]{1,4}/")
        call = lark.rule(
            '\n    {"tool_call_id": "',
            number,
            '", ',
            lark.call_members(tools, arguments_key="parameters", name_key="tool_name"),
        )
        return CallRules(_OPEN, lark.sequence("[", call), lark.sequence(",", call), f"\n]{_CLOSE}")


class CommandR(ToolSyntax):
    """Answering without a call is an action of its own there, ``directly-answer``, which nobody is told of."""

    name = "command_r"
    models = "Command R, Command R+, Aya Expanse"
    example = 'Action: ```json\n[\n    {"tool_name": "weather", "parameters": {"city": "Oslo"}}\n]\n```'

    def matches(self, template: str) -> bool:
        return "Action:" in template and "tool_name" in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=("Action:",))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        yield from reader.expect(trigger)
        yield from reader.space()
        yield from reader.expect("```json")
        yield from reader.space()
        yield from read_array(calls, silent=("directly-answer", "directly_answer"))
        yield from reader.space()
        yield from reader.accept("```")

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        call = lark.rule("\n    ", lark.call_object(tools, arguments_key="parameters", name_key="tool_name"))
        return CallRules("Action:", lark.sequence(" ```json\n[", call), lark.sequence(",", call), "\n]\n```")
