"""Python calls in a fenced ``tool_code`` block: what Google's guide asks of Gemma 3."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engines.text.output.calls import CallStream
from engines.text.tool_syntax.lark import Lark
from engines.text.tool_syntax.python_form import python_calls, read_call, read_list
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.wire import Tool

__all__ = ["Gemma3"]

_OPEN = "```tool_code"
_NAME = re.compile(r"[\w.]")


class Gemma3(ToolSyntax):
    """One call a line, in ``print(…)`` or not; or a list of them."""

    name = "gemma3"
    models = "Gemma 3 with a template for it"
    example = '```tool_code\nweather(city="Oslo")\n```'

    def matches(self, template: str) -> bool:
        return "tool_code" in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=(_OPEN,))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        yield from reader.expect(trigger)
        yield from reader.space()
        if (yield from reader.peek()) == "[":
            yield from read_list(calls, known=False)
            yield from reader.space()
        else:
            while True:
                printed = yield from reader.accept("print(")
                name = yield from reader.word(_NAME)
                yield from reader.expect("(")
                yield from read_call(calls, name)
                if printed:
                    yield from reader.space()
                    yield from reader.accept(")")
                yield from reader.space()
                if (yield from reader.peek()) in ("", "`"):
                    break
        yield from reader.accept("```")

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        call = lark.rule("\n", python_calls(lark, tools))
        return CallRules(_OPEN, call, call, "\n```")
