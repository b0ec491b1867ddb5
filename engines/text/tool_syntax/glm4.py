"""The function's name on a line, then JSON: GLM-4."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engines.text.output.calls import CallStream
from engines.text.tool_syntax.lark import Lark, argument_schema
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.wire import Tool

__all__ = ["Glm4"]

_NAME = re.compile(r"[\w.-]")


class Glm4(ToolSyntax):
    """Nothing marks a call but the name of a function that there is, at the answer's beginning."""

    name = "glm4"
    models = "GLM-4-9B, GLM-4-0414, GLM-Z1"
    example = 'weather\n{"city": "Oslo"}'

    def matches(self, template: str) -> bool:
        return "<|observation|>" in template and "[gMASK]" in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(first=tuple(f"{tool.name}\n" for tool in tools))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        name = yield from reader.word(_NAME)
        yield from reader.space()
        yield from calls.json_arguments(name)
        calls.end()

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        call = lark.either([lark.sequence(f"{tool.name}\n", lark.json(argument_schema(tool))) for tool in tools])
        return CallRules("", call, lark.sequence("\n", call))
