"""How models write calls: one file a syntax, one entry in the table.

``SYNTAXES`` is in the order in which templates are asked, the most particular first: a template may hold the marks of several.
To add one, write a subclass of :class:`ToolSyntax`, put it in the table, and add its golden calls to the tests, which go over
the table. ``docs/tools.md`` lists them.
"""

from engines.text.tool_syntax.generic import Generic
from engines.text.tool_syntax.hermes import Hermes
from engines.text.tool_syntax.syntax import CallRules, ToolSyntax, Triggers

__all__ = ["GENERIC", "SYNTAXES", "CallRules", "ToolSyntax", "Triggers", "syntax_named", "syntax_of"]

GENERIC = Generic()

SYNTAXES: tuple[ToolSyntax, ...] = (
    Hermes(),
    GENERIC,
)


def syntax_of(template: str | None) -> ToolSyntax:
    """The syntax whose marks stand in a chat template; ``GENERIC`` if none does."""
    return next((syntax for syntax in SYNTAXES if template and syntax.matches(template)), GENERIC)


def syntax_named(name: str) -> ToolSyntax | None:
    """The syntax of that name, or None."""
    return next((syntax for syntax in SYNTAXES if syntax.name == name), None)
