"""An array of JSON calls in ``<TOOLCALL>``: Nemotron Nano 2."""

from __future__ import annotations

from collections.abc import Sequence

from engines.text.output.calls import CallStream
from engines.text.tool_syntax.json_form import read_array
from engines.text.tool_syntax.lark import Lark
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.wire import Tool

__all__ = ["Nemotron"]


class Nemotron(ToolSyntax):
    """Later Nemotrons write as Qwen3-Coder does."""

    name = "nemotron"
    models = "Nemotron Nano 2"
    example = '<TOOLCALL>[{"name": "weather", "arguments": {"city": "Oslo"}}]</TOOLCALL>'
    marks = ("<TOOLCALL>", "</TOOLCALL>")

    def matches(self, template: str) -> bool:
        return "<TOOLCALL>" in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=("<TOOLCALL>",))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        yield from reader.expect(trigger)
        yield from reader.space()
        yield from read_array(calls)
        yield from reader.space()
        yield from reader.close("</TOOLCALL>")

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        call = lark.call_object(tools)
        return CallRules("<TOOLCALL>", lark.sequence("[", call), lark.sequence(", ", call), "]</TOOLCALL>")
