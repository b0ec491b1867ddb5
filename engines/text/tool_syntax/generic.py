"""The form for models whose templates know no tools: that of Hermes, explained to the model (``engines.text.generic_tools``)."""

from __future__ import annotations

from engines.text.tool_syntax.hermes import Hermes

__all__ = ["Generic"]


class Generic(Hermes):
    """Hermes' form. No template shows it: it is what remains."""

    name = "generic"
    models = "every model whose template knows no tools"

    def matches(self, template: str) -> bool:
        return False
