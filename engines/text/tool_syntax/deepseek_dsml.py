"""DeepSeek's mark-up of its own, DSML: V3.2 and V4."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from engines.text.output.calls import CallStream
from engines.text.output.reader import Malformed
from engines.text.tool_syntax.lark import Expression, Lark
from engines.text.tool_syntax.schemas import arguments_of, types_of
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.text.tool_syntax.text_values import TextArguments, text_value
from engines.wire import Tool

__all__ = ["DeepSeekV4", "DeepSeekV32"]

_NAME = re.compile(r"[^\s<>\"]")
_INVOKE, _INVOKE_END = '<｜DSML｜invoke name="', "</｜DSML｜invoke>"
_PARAMETER, _PARAMETER_END = '<｜DSML｜parameter name="', "</｜DSML｜parameter>"
_STRING = {"type": "string"}


class DeepSeekV32(ToolSyntax):
    """Each value says whether it is a string; any other is JSON. Both blocks are read whichever the template shows."""

    block: ClassVar[str] = "function_calls"
    name = "deepseek_v32"
    models = "DeepSeek V3.2"
    example = (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    )
    marks = ("｜DSML｜",)
    closes_thinking = True

    def matches(self, template: str) -> bool:
        return "｜DSML｜" in template and self.block in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        yield from reader.expect(trigger)
        yield from reader.space()
        yield from reader.expect(_INVOKE)
        while True:
            name = yield from reader.word(_NAME)
            yield from reader.expect('">')
            calls.start(name)
            arguments = TextArguments(calls)
            while True:
                yield from reader.space()
                if (yield from reader.expect(_PARAMETER, _INVOKE_END)) == _INVOKE_END:
                    break
                key = yield from reader.word(_NAME)
                kind = yield from reader.expect('" string="true">', '" string="false">', '">')
                if not key:
                    raise Malformed
                yield from arguments.read(key, _STRING if "true" in kind else None, _PARAMETER_END)
            arguments.end()
            yield from reader.space()
            if not (yield from reader.accept(_INVOKE)):
                break
        yield from reader.accept(trigger.replace("<", "</"))

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        call = lark.rule(lark.either([self._function(lark, tool) for tool in tools]), f"{_INVOKE_END}\n")
        return CallRules(f"<｜DSML｜{self.block}>", lark.sequence("\n", call), call, f"</｜DSML｜{self.block}>")

    def _function(self, lark: Lark, tool: Tool) -> Expression:
        begin = f'{_INVOKE}{tool.name}">\n'
        arguments = arguments_of(tool)
        if arguments is None:
            key = lark.terminal(r"/[^\s<>\"]+/")
            any_ = lark.sequence(_PARAMETER, key, '" string="false">', lark.json({}), f"{_PARAMETER_END}\n")
            return lark.sequence(begin, lark.repeated(any_))
        members = [(self._parameter(lark, each.key, each.schema), each.required) for each in arguments]
        return lark.sequence(begin, lark.members(members, ""))

    def _parameter(self, lark: Lark, key: str, schema: Mapping[str, Any]) -> Expression:
        string = "true" if types_of(schema) == {"string"} else "false"
        return lark.rule(f'{_PARAMETER}{key}" string="{string}">', text_value(lark, schema, f"{_PARAMETER_END}\n"))


class DeepSeekV4(DeepSeekV32):
    """The block has another name."""

    block = "tool_calls"
    name = "deepseek_v4"
    models = "DeepSeek V4"
    example = DeepSeekV32.example.replace("function_calls", "tool_calls")
