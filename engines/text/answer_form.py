"""How one answer is to be read: which marks are in it, and what they set apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.text.output import OutputParser, output_parser
from engines.text.reasoning import ReasoningFormat
from engines.text.tool_syntax import ToolSyntax
from engines.wire import Tool

__all__ = ["AnswerForm"]


@dataclass(frozen=True)
class AnswerForm:
    """The form of an answer to one prompt. The default is plain text.

    Attributes:
        reasoning: how the model marks its thinking; None for one that does not think.
        opened: the prompt ends inside thinking.
        may_think: there may be thinking, opened by the prompt or by the model.
        syntax: how the model calls functions; None where it may not.
    """

    reasoning: ReasoningFormat | None = None
    opened: bool = False
    may_think: bool = False
    syntax: ToolSyntax | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """The strings that the parser has to see, control tokens or not."""
        marks = self.reasoning.marks if self.reasoning else ()
        return marks + (self.syntax.marks if self.syntax else ())

    def parser(self, tools: Sequence[Tool], *, split: bool, whole: bool) -> OutputParser | None:
        """A new one for one answer; None where all of it is content. Arguments as for :func:`output_parser`."""
        if self.reasoning is None and self.syntax is None:
            return None
        return output_parser(
            self.reasoning, self.syntax, tools, starts_in_reasoning=self.opened, split=split, whole=whole
        )
