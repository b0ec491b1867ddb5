"""What a chat template says of its model: how it thinks, how it calls functions, and what the template can be told."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from engines.errors import InvalidField
from engines.text.generic_tools import tools_variable
from engines.text.reasoning import ReasoningFormat, TemplateSwitches, reasoning_format, template_switches
from engines.text.tool_syntax import GENERIC, ToolSyntax, syntax_named, syntax_of
from engines.wire import Reasoning, ToolUse

__all__ = ["TemplateTraits"]


@dataclass(frozen=True)
class TemplateTraits:
    """One template's.

    Attributes:
        reasoning: the marks of thinking; None for a model that does not think.
        switches: by which variables the template is told about thinking.
        syntax: how the model writes calls.
        tools: the variable in which the template wants the tools; None where they have to be told in messages.
        shows_calls: the template shows earlier calls and their results; otherwise they have to be written into messages.
    """

    reasoning: ReasoningFormat | None
    switches: TemplateSwitches
    syntax: ToolSyntax
    tools: str | None
    shows_calls: bool

    @classmethod
    def of(cls, template: str | None, control_tokens: Collection[str]) -> TemplateTraits:
        """Reads a template; None is a base model's."""
        return cls(
            reasoning_format(template),
            template_switches(template),
            syntax_of(template, control_tokens),
            tools_variable(template),
            "tool_calls" in (template or ""),
        )

    def syntax_for(self, tools: ToolUse) -> ToolSyntax:
        """The syntax of a request's calls. InvalidField for a name that is none."""
        if tools.syntax is None:
            return self.syntax
        named = syntax_named(tools.syntax)
        if named is None:
            raise InvalidField(f"tool_syntax: there is no syntax {tools.syntax!r}", param="tool_syntax")
        return named

    def shows_tools(self, syntax: ToolSyntax) -> bool:
        """Whether the template shows the tools; otherwise the system message does."""
        return self.tools is not None and syntax is not GENERIC

    def variables(self, reasoning: Reasoning) -> dict[str, Any]:
        """What the template is told of a request's wishes about thinking.

        InvalidField, naming the wish, for what it cannot be told, unless the wish is ``lenient``. That a model which does not
        think shall not is no wish.
        """
        if not reasoning.lenient:
            self._check(reasoning)
        told: dict[str, Any] = {}
        if reasoning.enabled is not None and self.reasoning is not None and self.switches.toggle is not None:
            told[self.switches.toggle] = reasoning.enabled
        if reasoning.effort is not None and self.switches.effort is not None:
            told[self.switches.effort] = reasoning.effort
        if reasoning.budget is not None and self.switches.budget is not None:
            told[self.switches.budget] = reasoning.budget
        return told

    def _check(self, reasoning: Reasoning) -> None:
        if reasoning.enabled and self.reasoning is None:
            wish = "reasoning" if reasoning.effort is None else "reasoning_effort"
            raise InvalidField(f"{wish}: this model does not think before it answers", param=wish)
        if reasoning.enabled is False and self.reasoning is not None and self.switches.toggle is None:
            raise InvalidField("reasoning: this model's template cannot be told not to think", param="reasoning")
        if reasoning.effort is not None and self.switches.effort is None:
            raise InvalidField(
                "reasoning_effort: this model's template cannot be told how much to think", param="reasoning_effort"
            )
