"""``<tool_call>name`` with ``<arg_key>`` and ``<arg_value>``: GLM-4.5 and later."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engines.text.output.calls import CallStream
from engines.text.output.reader import Malformed
from engines.text.tool_syntax.json_form import read_object
from engines.text.tool_syntax.lark import Expression, Lark
from engines.text.tool_syntax.schemas import arguments_of, schema_of
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.text.tool_syntax.text_values import TextArguments, text_value
from engines.wire import Tool

__all__ = ["Glm45"]

_NAME = re.compile(r"[^\s<>{}\"]")


class Glm45(ToolSyntax):
    """Each value is text between marks. A JSON object in place of all that is read as well: the models slip into it."""

    name = "glm45"
    models = "GLM-4.5, GLM-4.6, GLM-4.7, Laguna"
    example = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>"
    marks = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

    def matches(self, template: str) -> bool:
        return "<arg_key>" in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=("<tool_call>",))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        yield from reader.expect(trigger)
        yield from reader.space()
        if (yield from reader.peek()) == "{":
            yield from read_object(calls)
            yield from reader.space()
            yield from reader.close("</tool_call>")
            return
        name = yield from reader.word(_NAME)
        yield from reader.space()
        opened = yield from reader.expect("<arg_key>", "</tool_call>")
        calls.start(name)
        arguments = TextArguments(calls)
        while opened == "<arg_key>":
            key = (yield from reader.until("</arg_key>", limit=256)).strip()
            yield from reader.expect("</arg_key>")
            yield from reader.space()
            yield from reader.expect("<arg_value>")
            if not key:
                raise Malformed
            yield from arguments.read(key, schema_of(tools, name, key), "</arg_value>")
            yield from reader.space()
            opened = yield from reader.expect("<arg_key>", "</tool_call>")
        arguments.end()

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        first = lark.rule(lark.either([self._function(lark, tool) for tool in tools]), "</tool_call>")
        return CallRules("<tool_call>", first, lark.sequence("\n<tool_call>", first))

    def _function(self, lark: Lark, tool: Tool) -> Expression:
        arguments = arguments_of(tool)
        if arguments is None:
            key, value = (
                lark.free_text({"minLength": 1, "maxLength": 64}, "</arg_key>"),
                lark.free_text({}, "</arg_value>"),
            )
            return lark.sequence(f"{tool.name}\n", lark.repeated("<arg_key>", key, "\n<arg_value>", value, "\n"))
        members = [
            (
                lark.rule(
                    f"<arg_key>{argument.key}</arg_key>\n<arg_value>",
                    text_value(lark, argument.schema, "</arg_value>"),
                    "\n",
                ),
                argument.required,
            )
            for argument in arguments
        ]
        return lark.sequence(f"{tool.name}\n", lark.members(members, ""))
