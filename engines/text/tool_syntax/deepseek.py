"""DeepSeek's control tokens around name and JSON arguments: V3 and R1, and V3.1."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engines.text.output.calls import CallStream
from engines.text.output.reader import Malformed
from engines.text.tool_syntax.lark import Lark, argument_schema
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.wire import Tool

__all__ = ["DeepSeekV3", "DeepSeekV31"]

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_NAME = re.compile(r"[\w.:-]+")


class DeepSeekV31(ToolSyntax):
    """Name, separator, arguments. Both forms are read whichever the template shows."""

    name = "deepseek_v31"
    models = "DeepSeek V3.1"
    example = (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
        '{"city": "Oslo"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    )
    marks = (_CALLS, _CALLS_END, _CALL, _CALL_END, _SEPARATOR)
    closes_thinking = True

    def matches(self, template: str) -> bool:
        return _CALL in template and "```json" not in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=(_CALLS, _CALL))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        yield from reader.accept(_CALLS)
        yield from reader.space()
        yield from reader.expect(_CALL)
        while True:
            name = (yield from reader.until(_SEPARATOR, limit=256)).strip()
            yield from reader.expect(_SEPARATOR)
            yield from reader.space()
            fence = ""
            if (yield from reader.peek()) != "{":  # V3: what came first is the kind, "function"
                name = (yield from reader.until("\n", limit=256)).strip()
                yield from reader.space()
                fence = yield from reader.expect("```json")
                yield from reader.space()
            if not _NAME.fullmatch(name):
                raise Malformed
            yield from calls.json_arguments(name)
            calls.end()
            yield from reader.space()
            if fence:
                yield from reader.accept("```")
                yield from reader.space()
            yield from reader.accept(_CALL_END)
            yield from reader.space()
            if not (yield from reader.accept(_CALL)):
                break
        yield from reader.accept(_CALLS_END)

    before = ""  # what stands before the name
    around = (_SEPARATOR, "")  # what stands around the arguments

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        begin, end = self.around
        call = lark.rule(
            f"{_CALL}{self.before}",
            lark.either([lark.sequence(tool.name + begin, lark.json(argument_schema(tool))) for tool in tools]),
            end + _CALL_END,
        )
        break_ = "\n" if self.before else ""
        return CallRules(_CALLS, call, lark.sequence(break_, call), _CALLS_END)


class DeepSeekV3(DeepSeekV31):
    """The kind of tool before the name, and the arguments in a fenced block."""

    name = "deepseek_v3"
    models = "DeepSeek V3, R1 and their distillations"
    example = (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
        '```json\n{"city": "Oslo"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    )
    before = f"function{_SEPARATOR}"
    around = ("\n```json\n", "\n```")

    def matches(self, template: str) -> bool:
        return _CALL in template
