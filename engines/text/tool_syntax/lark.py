"""Grammars of calls, in llguidance's dialect of Lark.

A syntax writes its calls as text with schemas in between. What is a control token in the model's vocabulary is named as one,
since its spelling matches no such token; in a vocabulary without it the same mark is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from engines.errors import InvalidField
from engines.text.tool_syntax.definitions import only_needed
from engines.wire import Tool

__all__ = ["LONGEST", "Expression", "Lark", "argument_schema", "check_length"]

# Whitespace may not go on for ever: small models can lose themselves in it. Enough for indentation.
_WHITESPACE = r"[ \n\r\t]{1,32}"
LONGEST = 262_144  # characters of one grammar's rules


def argument_schema(tool: Tool) -> dict[str, Any]:
    """The JSON Schema of a function's arguments: always of an object, and of an empty one for a function that takes none."""
    if tool.parameters is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **tool.parameters}


def check_length(length: int) -> None:
    """InvalidField for schemas or rules of so many characters, before more memory goes into what is refused."""
    if length > LONGEST:
        message = f"tools: the grammar of their calls has more than {LONGEST} characters, which is too long"
        raise InvalidField(message, param="tools")


class Expression(str):
    """A piece of a grammar, told from the text that an answer must have."""

    __slots__ = ()


class Lark:
    """A grammar that is being written, from texts (``str``) and expressions that stand for more than one text.

    InvalidField, about ``tools``, once its rules are too long.

    Args:
        special: the marks that are control tokens, with their ids.
    """

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = dict(special)
        marks = sorted(self._special, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, marks))})") if marks else None
        self._rules: list[str] = []
        self._length = 0  # of all rules

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

    def parted(self, mark: str) -> tuple[str, str] | None:
        """A mark's text before its first control token, and the rest; None if there is no control token in it."""
        found = self._split.search(mark) if self._split else None
        return (mark[: found.start()], mark[found.start() :]) if found else None

    def rule(self, *pieces: str, options: str = "") -> Expression:
        """A sequence under a name of its own."""
        return self._named("r", self.sequence(*pieces), options)

    def terminal(self, body: str) -> Expression:
        """A terminal, written in Lark: of regular expressions and texts."""
        return self._named("T", body)

    def json(self, schema: Mapping[str, Any]) -> Expression:
        """JSON that a schema allows."""
        options = {"whitespace_pattern": _WHITESPACE}
        return self._named("r", "%json " + json.dumps({**only_needed(schema), "x-guidance": options}))

    def either(self, alternatives: Sequence[Expression]) -> Expression:
        """One of these."""
        return alternatives[0] if len(alternatives) == 1 else self._named("r", " | ".join(alternatives))

    def repeated(self, *pieces: str, times: str = "*") -> Expression:
        """A sequence as often as ``times`` says: ``*``, ``+``, ``?``."""
        return Expression(f"({self.sequence(*pieces)}){times}")

    def members(self, members: Sequence[tuple[Expression, bool]], separator: str) -> Expression:
        """Expressions in this order with a separator in between; those that are not True may be left out."""
        after = first = self.sequence("")
        for member, required in reversed(members):
            with_it, alone = self.sequence(separator, member, after), self.sequence(member, after)
            if required:
                after, first = self.rule(with_it), self.rule(alone)
            else:
                after, first = self.either([with_it, after]), self.either([alone, first])
        return first

    def free_text(self, schema: Mapping[str, Any], close: str) -> Expression:
        """Text up to ``close``, and that, too. Of a string's schema its lengths and its pattern are kept."""
        shortest, longest = schema.get("minLength", 0), schema.get("maxLength", "")
        bounded = bool(shortest) or longest != ""
        terms = [f"/(?s:.{{{shortest},{longest}}})/" if bounded else "/(?s:.*)/"]
        if isinstance(pattern := schema.get("pattern"), str):
            terms.append(_searched(pattern))
        if parted := self.parted(close):
            value = self.terminal(" & ".join(terms))
            return self.sequence(self.terminal(f"{value} {json.dumps(parted[0])}") if parted[0] else value, parted[1])
        if len(terms) > 1 or bounded:
            terms.append(f"~{_written(f'(?s:.*){re.escape(close)}(?s:.*)')}")
        value = self.terminal(" & ".join(terms))
        return self.rule(self.terminal(f"{value} {json.dumps(close)}"), options="[lazy]")

    def call_object(
        self, tools: Sequence[Tool], arguments_key: str = "arguments", name_key: str = "name"
    ) -> Expression:
        """``{"name": …, "arguments": …}`` of one of the functions."""
        return self.sequence("{", self.call_members(tools, arguments_key, name_key))

    def call_members(
        self, tools: Sequence[Tool], arguments_key: str = "arguments", name_key: str = "name"
    ) -> Expression:
        """The same without the opening brace, for objects that have other members first."""
        calls = [
            self.sequence(
                f'"{name_key}": {json.dumps(tool.name)}, "{arguments_key}": ', self.json(argument_schema(tool)), "}"
            )
            for tool in tools
        ]
        return self.either(calls)

    def later(self) -> Expression:
        """A rule that :meth:`define` gives its alternatives, which may have it in them."""
        self._rules.append("")
        return Expression(f"r{len(self._rules) - 1}")

    def define(self, rule: Expression, alternatives: Sequence[Expression]) -> Expression:
        """Says what a rule of :meth:`later` is."""
        body = " | ".join(alternatives)
        self._rules[int(rule[1:])] = f"{rule}: {body}"
        self._count(body)
        return rule

    def _count(self, body: str) -> None:
        self._length += len(body)
        check_length(self._length)

    def _named(self, prefix: str, body: str, options: str = "") -> Expression:
        name = f"{prefix}{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        self._count(body)
        return Expression(name)

    def written(self, start: Expression) -> str:
        """The grammar, whose answers match ``start``."""
        return "\n".join([f"start: {start}", *self._rules]) + "\n"


def _searched(pattern: str) -> str:
    """A JSON Schema's pattern, which may match anywhere, as a regular expression of the whole text."""
    begin, end = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith(r"\$")
    inner = pattern[1 if begin else 0 : -1 if end else None]
    whole = f"{'' if begin else '(?s:.*)'}({inner}){'' if end else '(?s:.*)'}"
    return _written(whole)


def _written(expression: str) -> str:
    """A regular expression as Lark has it: between slashes, on one line."""
    escaped = re.sub(r"\\(?s:.)|/", lambda found: r"\/" if found[0] == "/" else found[0], expression)
    return "/" + escaped.replace("\\\n", "\n").replace("\n", r"\n") + "/"
