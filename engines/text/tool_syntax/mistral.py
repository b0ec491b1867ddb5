"""``[TOOL_CALLS]``: Mistral's models, in their older form (an array) and their newer one (name and arguments)."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence

from engines.text.output.calls import CallStream
from engines.text.tool_syntax.json_form import read_array
from engines.text.tool_syntax.lark import Lark, argument_schema
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.wire import Tool

__all__ = ["Mistral", "MistralArray"]

_NAME = re.compile(r"[\w.-]")
_ID = re.compile(r"[A-Za-z0-9]")
_ALPHANUMERIC = string.digits + string.ascii_letters


class Mistral(ToolSyntax):
    """The form since Mistral Small 3.2, Magistral and Devstral. No mark closes a call.

    Both forms are read whichever the template shows. Ids are nine letters and digits: the templates refuse others.
    """

    name = "mistral"
    models = "Mistral Small 3.2 and later, Magistral, Devstral, Ministral 3"
    example = '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}'
    marks = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
    closes_thinking = True

    def matches(self, template: str) -> bool:
        return "[TOOL_CALLS]" in template and "[ARGS]" in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=("[TOOL_CALLS]",))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        yield from reader.expect(trigger)
        yield from reader.space()
        if (yield from reader.peek()) == "[":
            yield from read_array(calls)
            return
        name = yield from reader.word(_NAME)
        call_id = None
        yield from reader.space()
        if (yield from reader.accept("[CALL_ID]")):
            call_id = yield from reader.word(_ID)
        yield from reader.accept("[ARGS]")
        yield from reader.space()
        yield from calls.json_arguments(name, call_id)
        calls.end()

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        call = lark.either([lark.sequence(f"{tool.name}[ARGS]", lark.json(argument_schema(tool))) for tool in tools])
        return CallRules("[TOOL_CALLS]", call, lark.sequence("[TOOL_CALLS]", call))

    def call_id(self, index: int, name: str, random: Callable[[int], bytes]) -> str:
        number = int.from_bytes(random(9))
        return "".join(_ALPHANUMERIC[number // 62**place % 62] for place in range(9))


class MistralArray(Mistral):
    """The form up to Mistral Small 3.1: all calls of a turn in one array."""

    name = "mistral_array"
    models = "Mistral 7B v0.3, Mixtral 8x22B, Mistral Nemo, Mistral Large, Mistral Small 3.1"
    example = '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}}]'

    def matches(self, template: str) -> bool:
        return "[TOOL_CALLS]" in template and "[ARGS]" not in template

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        call = lark.call_object(tools)
        first = lark.sequence(lark.repeated(" ", times="?"), "[", call)
        return CallRules("[TOOL_CALLS]", first, lark.sequence(", ", call), "]")
