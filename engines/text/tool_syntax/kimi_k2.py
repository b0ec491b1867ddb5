"""Control tokens around ``functions.name:0`` and JSON arguments: Kimi K2."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from engines.text.output.calls import CallStream
from engines.text.output.reader import Malformed
from engines.text.tool_syntax.lark import Lark, argument_schema
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.wire import Tool

__all__ = ["KimiK2"]

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_HEADER = re.compile(r"(?:functions\.)?(?P<name>[^\s:<>]+)(?P<number>:[0-9]+)?")


class KimiK2(ToolSyntax):
    """A call's id is ``functions.name:index``, and the model writes it itself."""

    name = "kimi_k2"
    models = "Kimi K2, Kimi K2 Thinking"
    example = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
        '<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>'
    )
    marks = (_SECTION, _SECTION_END, _CALL, _ARGUMENTS, _CALL_END)
    closes_thinking = True

    def matches(self, template: str) -> bool:
        return _SECTION in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=(_SECTION, _CALL))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        yield from reader.accept(_SECTION)
        yield from reader.space()
        yield from reader.expect(_CALL)
        while True:
            text = (yield from reader.until(_ARGUMENTS, limit=256)).strip()
            header = _HEADER.fullmatch(text)
            yield from reader.expect(_ARGUMENTS)
            yield from reader.space()
            if header is None:
                raise Malformed
            yield from calls.json_arguments(header["name"], text if header["number"] else None)
            calls.end()
            yield from reader.space()
            yield from reader.accept(_CALL_END)
            yield from reader.space()
            if not (yield from reader.accept(_CALL)):
                break
        yield from reader.accept(_SECTION_END)

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        number = lark.terminal("/:[0-9]{1,4}/")
        call = lark.either(
            [
                lark.sequence(
                    f"{_CALL}functions.{tool.name}", number, _ARGUMENTS, lark.json(argument_schema(tool)), _CALL_END
                )
                for tool in tools
            ]
        )
        return CallRules(_SECTION, call, call, _SECTION_END)

    def call_id(self, index: int, name: str, random: Callable[[int], bytes]) -> str:
        return f"functions.{name}:{index}"
