"""Functionary: ``<function=name>{…}</function>`` in v3.1, ``>>>name`` and JSON in v3.2."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engines.text.output.calls import CallStream
from engines.text.output.reader import Malformed
from engines.text.tool_syntax.lark import Lark, argument_schema
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.wire import Tool

__all__ = ["FunctionaryV31", "FunctionaryV32"]

_NAME = re.compile(r"[\w.-]")


class FunctionaryV31(ToolSyntax):
    """The form that Meta describes for custom tools of Llama 3.1, too."""

    name = "functionary_v31"
    models = "Functionary v3.1"
    example = '<function=weather>{"city": "Oslo"}</function>'

    def matches(self, template: str) -> bool:
        return "<function=" in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=("<function=",))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        yield from reader.expect(trigger)
        name = yield from reader.word(_NAME)
        yield from reader.expect(">")
        yield from reader.space()
        yield from calls.json_arguments(name)
        calls.end()
        yield from reader.space()
        yield from reader.close("</function>")

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        functions = [lark.sequence(f"{tool.name}>", lark.json(argument_schema(tool))) for tool in tools]
        first = lark.rule(lark.either(functions), "</function>")
        return CallRules("<function=", first, lark.sequence("<function=", first))


class FunctionaryV32(ToolSyntax):
    """Each part of an answer says to whom it goes: a function, or ``all``. The prompt ends with the first ``>>>``."""

    name = "functionary_v32"
    models = "Functionary v3.2"
    example = 'weather\n{"city": "Oslo"}'

    def matches(self, template: str) -> bool:
        return ">>>all" in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=(">>>",), first=("all\n", *(f"{tool.name}\n" for tool in tools)))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        yield from reader.accept(">>>")
        name = yield from reader.word(_NAME)
        if name != "all" and name not in calls.names:
            raise Malformed
        yield from reader.expect("\n")
        if name == "all":
            calls.mark()
            return
        yield from reader.space()
        yield from calls.json_arguments(name)
        calls.end()

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        call = lark.either([lark.sequence(f"{tool.name}\n", lark.json(argument_schema(tool))) for tool in tools])
        return CallRules("", call, lark.sequence(lark.repeated("\n", times="?"), ">>>", call))
