"""JSON objects, one a line, in ``<tool_calls>``: MiniMax M1."""

from __future__ import annotations

from collections.abc import Sequence

from engines.text.output.calls import CallStream
from engines.text.tool_syntax.json_form import read_array, read_object
from engines.text.tool_syntax.lark import Lark
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.wire import Tool

__all__ = ["MiniMaxM1"]


class MiniMaxM1(ToolSyntax):
    """All calls of a turn are in one block. An array in it, as Apriel writes, is read as well."""

    name = "minimax_m1"
    models = "MiniMax M1, Apriel 1.5"
    example = '<tool_calls>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_calls>'
    marks = ("<tool_calls>", "</tool_calls>")

    def matches(self, template: str) -> bool:
        return "<tool_calls>" in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=("<tool_calls>",))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        yield from reader.expect(trigger)
        yield from reader.space()
        if (yield from reader.peek()) == "[":
            yield from read_array(calls)
            yield from reader.space()
        else:
            while True:
                yield from read_object(calls)
                yield from reader.space()
                if (yield from reader.peek()) != "{":
                    break
        yield from reader.close("</tool_calls>")

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        call = lark.rule("\n", lark.call_object(tools))
        return CallRules("<tool_calls>", call, call, "\n</tool_calls>")
