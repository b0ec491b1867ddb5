"""A list of Python calls: Llama 4, and models taught the same."""

from __future__ import annotations

from collections.abc import Sequence

from engines.text.output.calls import CallStream
from engines.text.tool_syntax.json_form import read_object
from engines.text.tool_syntax.lark import Lark
from engines.text.tool_syntax.python_form import python_calls, read_list
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.wire import Tool

__all__ = ["Lfm2", "Llama4"]


class Llama4(ToolSyntax):
    """An answer that begins with a list of calls of functions that there are; or such a list after ``<|python_start|>``."""

    name = "llama4"
    models = "Llama 4, Llama 3.2 with a template for it, OLMo 3"
    example = '[weather(city="Oslo")]'
    marks = ("<|python_start|>", "<|python_end|>")

    def matches(self, template: str) -> bool:
        return "[func_name1(" in template or ("<|header_start|>" in template and '"parameters": ' not in template)

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=("<|python_start|>",), first=("[", "{"))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        marked = bool((yield from reader.accept("<|python_start|>")))
        yield from reader.space()
        if (yield from reader.peek()) == "{":
            yield from read_object(calls, only=None if marked else calls.names)
        else:
            yield from read_list(calls, known=not marked)
        yield from reader.space()
        yield from reader.accept("<|python_end|>")

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        call = python_calls(lark, tools)
        return CallRules("", lark.sequence("[", call), lark.sequence(", ", call), "]", never=r"\[{")


class Lfm2(ToolSyntax):
    """The same list between control tokens."""

    name = "lfm2"
    models = "LFM2, LFM2.5"
    example = '<|tool_call_start|>[weather(city="Oslo")]<|tool_call_end|>'
    marks = ("<|tool_call_start|>", "<|tool_call_end|>")
    closes_thinking = True

    def matches(self, template: str) -> bool:
        return "<|tool_call_start|>" in template or "<|tool_list_start|>" in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=("<|tool_call_start|>",))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        yield from reader.expect(trigger)
        yield from reader.space()
        yield from (read_object(calls) if (yield from reader.peek()) == "{" else read_list(calls, known=False))
        yield from reader.space()
        yield from reader.accept("<|tool_call_end|>")

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        call = python_calls(lark, tools)
        return CallRules(
            "<|tool_call_start|>", lark.sequence("[", call), lark.sequence(", ", call), "]<|tool_call_end|>"
        )
