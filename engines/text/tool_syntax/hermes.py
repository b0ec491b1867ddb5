"""``<tool_call>`` around a JSON object: Hermes 2 and 3, Qwen 2.5 and 3, and many others since."""

from __future__ import annotations

from collections.abc import Sequence

from engines.text.output.calls import CallStream
from engines.text.tool_syntax.json_form import read_object
from engines.text.tool_syntax.lark import Lark
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.wire import Tool

__all__ = ["Hermes"]


class Hermes(ToolSyntax):
    """Several calls are several blocks. The closing mark may be missing."""

    name = "hermes"
    models = "Hermes 2 Pro, Hermes 3, Qwen 2.5, Qwen3, QwQ and others"
    example = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    marks = ("<tool_call>", "</tool_call>")

    def matches(self, template: str) -> bool:
        return "<tool_call>" in template and "<invoke " not in template  # MiniMax M3 has both

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=("<tool_call>",))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        yield from reader.expect(trigger)
        yield from reader.space()
        yield from read_object(calls)
        yield from reader.space()
        yield from reader.close("</tool_call>")

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        first = lark.rule("\n", lark.call_object(tools), "\n</tool_call>")
        return CallRules("<tool_call>", first, lark.sequence("\n<tool_call>", first))
