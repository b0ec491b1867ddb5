"""Messages to ``functions.name`` in the commentary channel: gpt-oss.

Source: OpenAI's description of the harmony response format.
"""

from __future__ import annotations

from collections.abc import Sequence

from engines.text.output.calls import CallStream
from engines.text.output.reader import Malformed
from engines.text.tool_syntax.lark import Lark, argument_schema
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.wire import Tool

__all__ = ["Harmony"]


class Harmony(ToolSyntax):
    """Every text of such a model is in a channel, so :class:`engines.text.output.channels.ChannelledAnswer` reads all of it.

    The grammar is of the whole answer, thinking included: what follows thinking is a header of its own.
    """

    name = "harmony"
    models = "gpt-oss"
    example = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>'
    marks = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")

    def matches(self, template: str) -> bool:
        return "<|channel|>" in template and "<|message|>" in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers()

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        raise Malformed
        yield

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        thinking = lark.rule("<|channel|>analysis<|message|>", lark.free_text({}, "<|end|>"), "<|start|>assistant")
        header = lark.rule(lark.repeated(thinking, times="?"), lark.repeated("<|start|>assistant", times="?"))
        call = lark.either(
            [
                lark.sequence(
                    f"<|channel|>commentary to=functions.{tool.name} <|constrain|>json<|message|>",
                    lark.json(argument_schema(tool)),
                )
                for tool in tools
            ]
        )
        return CallRules("", lark.sequence(header, call))
