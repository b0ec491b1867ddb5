"""``<function=name>`` with ``<parameter=key>`` in it: Qwen3-Coder, Qwen3.5, Nemotron 3 and others."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engines.text.output.calls import CallStream
from engines.text.output.reader import Malformed
from engines.text.tool_syntax.lark import Expression, Lark
from engines.text.tool_syntax.schemas import arguments_of, schema_of
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.text.tool_syntax.text_values import TextArguments, text_value
from engines.wire import Tool

__all__ = ["Qwen3Coder", "SeedOss"]

_NAME = re.compile(r"[^\s<>=]")


class Qwen3Coder(ToolSyntax):
    """Each value is text between marks, with a line break on both sides. Models leave ``<tool_call>`` out at times."""

    name = "qwen3_coder"
    models = "Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5"
    example = "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"
    opens, closes = "<tool_call>", "</tool_call>"
    marks = (opens, closes)

    def matches(self, template: str) -> bool:
        return "<function=" in template and "<parameter=" in template and self.opens in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=(self.opens, "<function="))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        if trigger == self.opens:
            yield from reader.expect(trigger)
            yield from reader.space()
        yield from reader.expect("<function=")
        name = yield from reader.word(_NAME)
        yield from reader.expect(">")
        calls.start(name)
        arguments = TextArguments(calls)
        while True:
            yield from reader.space()
            if not (yield from reader.accept("<parameter=")):
                break
            key = yield from reader.word(_NAME)
            yield from reader.expect(">")
            if not key:
                raise Malformed
            yield from arguments.read(key, schema_of(tools, name, key), "</parameter>")
        yield from reader.expect("</function>")
        arguments.end()
        yield from reader.space()
        yield from reader.close(self.closes)

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        functions = [self._function(lark, tool) for tool in tools]
        first = lark.rule("\n<function=", lark.either(functions), f"</function>\n{self.closes}")
        return CallRules(self.opens, first, lark.sequence(f"\n{self.opens}", first))

    def _function(self, lark: Lark, tool: Tool) -> Expression:
        arguments = arguments_of(tool)
        if arguments is None:
            value = lark.free_text({}, "\n</parameter>\n")
            return lark.sequence(
                f"{tool.name}>\n", lark.repeated("<parameter=", lark.terminal(r"/[^\s<>=]+/"), ">\n", value)
            )
        members = [
            (
                lark.rule(f"<parameter={argument.key}>\n", text_value(lark, argument.schema, "\n</parameter>\n")),
                argument.required,
            )
            for argument in arguments
        ]
        return lark.sequence(f"{tool.name}>\n", lark.members(members, ""))


class SeedOss(Qwen3Coder):
    """The same within marks of its own."""

    name = "seed_oss"
    models = "Seed-OSS"
    example = (
        "<seed:tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</seed:tool_call>"
    )
    opens, closes = "<seed:tool_call>", "</seed:tool_call>"
    marks = (opens, closes)
