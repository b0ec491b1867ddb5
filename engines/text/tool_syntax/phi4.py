"""An array of JSON calls between marks, or after ``functools``: Phi-4 mini."""

from __future__ import annotations

from collections.abc import Sequence

from engines.text.output.calls import CallStream
from engines.text.tool_syntax.json_form import read_array, read_object
from engines.text.tool_syntax.lark import Lark
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.wire import Tool

__all__ = ["Phi4"]

_OPEN, _CLOSE = "<|tool_call|>", "<|/tool_call|>"


class Phi4(ToolSyntax):
    """A lone object in place of the array is read as well."""

    name = "phi4"
    models = "Phi-4 mini, Phi-4 multimodal; FireFunction v2"
    example = '<|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo"}}]<|/tool_call|>'
    marks = (_OPEN, _CLOSE)
    closes_thinking = True

    def matches(self, template: str) -> bool:
        return "<|/tool|>" in template or _CLOSE in template or "functools[" in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=(_OPEN, "functools["))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        yield from reader.expect(trigger.removesuffix("["))
        yield from reader.space()
        yield from (read_object if (yield from reader.peek()) == "{" else read_array)(calls)
        yield from reader.space()
        yield from reader.accept(_CLOSE)

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        call = lark.call_object(tools)
        return CallRules(_OPEN, lark.sequence("[", call), lark.sequence(", ", call), f"]{_CLOSE}")
