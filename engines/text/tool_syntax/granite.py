"""An array of JSON calls after a mark: Granite 3."""

from __future__ import annotations

from collections.abc import Sequence

from engines.text.output.calls import CallStream
from engines.text.tool_syntax.json_form import read_array, read_object
from engines.text.tool_syntax.lark import Lark
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.wire import Tool

__all__ = ["Granite"]


class Granite(ToolSyntax):
    """3.0 has the mark as a control token, 3.1 to 3.3 spell ``<tool_call>`` at times. Granite 4 writes as Hermes does."""

    name = "granite"
    models = "Granite 3.0 to 3.3"
    example = '<|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo"}}]'
    marks = ("<|tool_call|>", "<tool_call>", "</tool_call>")
    closes_thinking = True

    def matches(self, template: str) -> bool:
        return "<|tool_call|>" in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=("<|tool_call|>", "<tool_call>"))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        yield from reader.expect(trigger)
        yield from reader.space()
        yield from (read_object if (yield from reader.peek()) == "{" else read_array)(calls)
        yield from reader.space()
        yield from reader.close("</tool_call>")

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        call = lark.call_object(tools)
        return CallRules("<|tool_call|>", lark.sequence("[", call), lark.sequence(", ", call), "]")
