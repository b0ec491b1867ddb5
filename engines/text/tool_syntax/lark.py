"""Grammars of calls, in llguidance's dialect of Lark.

A syntax writes its calls as text with schemas in between. What is a control token in the model's vocabulary is named as one,
since its spelling matches no such token; in a vocabulary without it the same mark is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from engines.wire import Tool

__all__ = ["Expression", "Lark", "argument_schema"]

# Whitespace may not go on for ever: small models can lose themselves in it. Enough for indentation.
_WHITESPACE = r"[ \n\r\t]{1,32}"


def argument_schema(tool: Tool) -> dict[str, Any]:
    """The JSON Schema of a function's arguments: always of an object, and of an empty one for a function that takes none."""
    if tool.parameters is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **tool.parameters}


class Expression(str):
    """A piece of a grammar, told from the text that an answer must have."""

    __slots__ = ()


class Lark:
    """A grammar that is being written, from texts (``str``) and expressions that stand for more than one text.

    Args:
        special: the marks that are control tokens, with their ids.
    """

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = dict(special)
        marks = sorted(self._special, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, marks))})") if marks else None
        self._rules: list[str] = []

    def sequence(self, *pieces: str) -> Expression:
        """One piece after the other. What is no :class:`Expression` is text, control tokens in it named as such."""
        written = [piece if isinstance(piece, Expression) else self._text(piece) for piece in pieces if piece]
        return Expression(" ".join(written) or '""')

    def _text(self, text: str) -> str:
        pieces = self._split.split(text) if self._split else [text]
        return " ".join(
            f"<[{self._special[piece]}]>" if piece in self._special else json.dumps(piece, ensure_ascii=False)
            for piece in pieces
            if piece
        )

    def is_special(self, mark: str) -> bool:
        """Whether a mark begins with a control token."""
        return mark.startswith(tuple(self._special))

    def rule(self, *pieces: str, options: str = "") -> Expression:
        """A sequence under a name of its own."""
        return self._named("r", self.sequence(*pieces), options)

    def terminal(self, body: str) -> Expression:
        """A terminal, written in Lark: of regular expressions and texts."""
        return self._named("T", body)

    def json(self, schema: Mapping[str, Any]) -> Expression:
        """JSON that a schema allows."""
        options = {"whitespace_pattern": _WHITESPACE, **schema.get("x-guidance", {})}
        return self._named("r", "%json " + json.dumps({**schema, "x-guidance": options}))

    def either(self, alternatives: Sequence[Expression]) -> Expression:
        """One of these."""
        return alternatives[0] if len(alternatives) == 1 else self._named("r", " | ".join(alternatives))

    def repeated(self, *pieces: str, times: str = "*") -> Expression:
        """A sequence as often as ``times`` says: ``*``, ``+``, ``?``."""
        return Expression(f"({self.sequence(*pieces)}){times}")

    def call_object(
        self, tools: Sequence[Tool], arguments_key: str = "arguments", name_key: str = "name"
    ) -> Expression:
        """``{"name": …, "arguments": …}`` of one of the functions."""
        return self.either([self._call_object(tool, arguments_key, name_key) for tool in tools])

    def _call_object(self, tool: Tool, arguments_key: str, name_key: str) -> Expression:
        begin = f'{{"{name_key}": {json.dumps(tool.name)}, "{arguments_key}": '
        return self.sequence(begin, self.json(argument_schema(tool)), "}")

    def _named(self, prefix: str, body: str, options: str = "") -> Expression:
        name = f"{prefix}{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return Expression(name)

    def written(self, start: Expression) -> str:
        """The grammar, whose answers match ``start``."""
        return "\n".join([f"start: {start}", *self._rules]) + "\n"
