"""``{"name": …, "parameters": …}`` and nothing else: Llama 3.1 to 3.3, and Llama 4 with its own template."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engines.text.output.calls import CallStream
from engines.text.output.reader import Malformed
from engines.text.tool_syntax.json_form import read_object
from engines.text.tool_syntax.lark import Lark
from engines.text.tool_syntax.python_form import read_call
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.wire import Tool

__all__ = ["Llama3"]

_NAME = re.compile(r"\w")


class Llama3(ToolSyntax):
    """An answer that begins with an object which names a function that there is; or after ``<|python_tag|>``.

    After that mark the built-in tools are written as ``name.call(query="…")``. Several calls have semicolons in between.
    """

    name = "llama3"
    models = "Llama 3.1, 3.2, 3.3; Llama 4 with the template that asks for JSON"
    example = '{"name": "weather", "parameters": {"city": "Oslo"}}'
    marks = ("<|python_tag|>", "<|python_start|>", "<|python_end|>")

    def matches(self, template: str) -> bool:
        return "<|python_tag|>" in template or '"parameters": dictionary' in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=("<|python_tag|>", "<|python_start|>"), first=("{",))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        marked = trigger != "{"
        if marked:
            yield from reader.expect(trigger)
            yield from reader.space()
            if (yield from reader.peek()) != "{":
                name = yield from reader.word(_NAME)
                yield from reader.expect(".call(")
                yield from read_call(calls, name)
                yield from reader.accept("<|python_end|>")
                return
        while True:
            yield from read_object(calls, only=None if marked else calls.names)
            yield from reader.space()
            if not (yield from reader.accept(";")):
                break
            yield from reader.space()
            if (yield from reader.peek()) != "{":
                raise Malformed
        yield from reader.accept("<|python_end|>")

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        call = lark.call_object(tools, arguments_key="parameters")
        return CallRules("", call, lark.sequence("; ", call), never="{")
