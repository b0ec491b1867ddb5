"""What a call syntax is."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from engines.text.output.calls import CallStream
from engines.text.tool_syntax.lark import Expression, Lark, check_length
from engines.wire import Tool

__all__ = ["CallRules", "ReadCalls", "ToolSyntax", "Triggers"]

ReadCalls = Generator[None, None, None]

_ANYTHING = r"/(?s:.*)/"


@dataclass(frozen=True)
class Triggers:
    """Where calls begin.

    Attributes:
        anywhere: marks that begin one wherever they stand in an answer; none is the beginning of another.
        first: texts that begin one at an answer's beginning, after thinking, or right after another call.
    """

    anywhere: tuple[str, ...] = ()
    first: tuple[str, ...] = ()


@dataclass(frozen=True)
class CallRules:
    """The grammar of an answer's calls, as ``head first again* tail``.

    Attributes:
        head: the mark before which anything may stand in an answer that need not call; "" if calls only ever come first.
        first: the first call, after ``head``.
        again: each further call with what stands before it; None where there can be no other.
        tail: what ends the last call.
        never: for an empty ``head``, a regular expression of the character with which calls begin and other answers do not.
    """

    head: str
    first: Expression
    again: Expression | None = None
    tail: str = ""
    never: str = ""


class ToolSyntax(ABC):
    """One way in which models write calls. Instances hold no state; a parser of one answer is what :meth:`read` gives.

    Attributes:
        name: what the registry and requests call it.
        models: whose it is, for the documentation.
        example: a call of ``weather`` with ``{"city": "Oslo"}``.
        marks: the strings that have to reach the parser as text even where they are control tokens.
        closes_thinking: its marks are control tokens that end thinking, too, if the model forgot to.
    """

    name: ClassVar[str]
    models: ClassVar[str]
    example: ClassVar[str]
    marks: ClassVar[tuple[str, ...]] = ()
    closes_thinking: ClassVar[bool] = False

    @abstractmethod
    def matches(self, template: str) -> bool:
        """Whether a chat template is of a model that calls so. Asked in the order of the registry."""

    @abstractmethod
    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        """Where calls begin."""

    @abstractmethod
    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        """Reads the call or calls that begin with ``trigger``, which is not read yet, up to the mark that closes them.

        Raises Malformed or TextEnded where the text is no call; what was read for it becomes text again.
        """

    @abstractmethod
    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        """The grammar of calls of these tools."""

    def call_id(self, index: int, name: str, random: Callable[[int], bytes]) -> str:
        """An id for a call that the model gave none. ``random`` gives so many random bytes."""
        return f"call_{random(12).hex()}"

    def grammar(
        self, tools: Sequence[Tool], *, parallel: bool, special: Mapping[str, int], required: bool = True
    ) -> str | None:
        """Lark of the answers that call these tools, each call with arguments that its schema allows.

        Args:
            tools: those that may be called; the one alone that must be.
            parallel: whether there may be several calls.
            special: the ids of those of ``marks`` that are control tokens in the model's vocabulary.
            required: whether the answer is calls and nothing else. Otherwise there may be any text as well, and calls in it
                are valid ones; None for a syntax whose calls cannot be told from text as it is written.

        The grammar begins where the answer does, after thinking, and ends where the model ends: no end-of-turn token is in it.
        """
        check_length(sum(len(json.dumps(tool.parameters)) for tool in tools))
        lark = Lark({mark: special[mark] for mark in self.marks if mark in special})
        rules = self.rules(lark, tools, parallel)
        again = lark.repeated(rules.again) if parallel and rules.again else ""
        body = lark.sequence(rules.first, again, rules.tail)
        if required:
            return lark.written(lark.sequence(rules.head, body))
        times = "*" if parallel else "?"
        if not rules.head:
            if not rules.never:
                return None
            other = lark.terminal(rf"/\s*/ | /(?s:\s*[^{rules.never}\s].*)/")
            return lark.written(lark.either([body, other]))
        text = lark.terminal(_ANYTHING)
        if parted := lark.parted(rules.head):
            before = lark.terminal(f"{_ANYTHING} {json.dumps(parted[0])}") if parted[0] else text
            return lark.written(lark.sequence(lark.repeated(before, parted[1], body, times=times), text))
        head = lark.rule(text, rules.head, options="[lazy]")
        return lark.written(lark.sequence(lark.repeated(head, body, times=times), text))
