"""Errors that a worker put in the names of chat's options, in those of the protocol that asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.errors import GatewayError

__all__ = ["ANTHROPIC", "OLLAMA", "RESPONSES", "OwnTerms"]

_FUNCTION = re.compile(r"(tools\[\d+\])\.function\.(\w+)")


@dataclass(frozen=True)
class OwnTerms:
    """``names``: chat's options to a protocol's. ``function``: the fields of a function stand in the tool itself, under these
    names where they are others; None: they stand where chat has them.
    """

    names: Mapping[str, str]
    function: Mapping[str, str] | None = None

    def param(self, error: GatewayError) -> str | None:
        """The field that the error is about, as the request had it."""
        name = error.param
        if name is None or name in self.names:
            return None if name is None else self.names[name]
        fields = self.function
        if fields is None:
            return name
        return _FUNCTION.sub(lambda found: f"{found[1]}.{fields.get(found[2], found[2])}", name)

    def message(self, error: GatewayError) -> str:
        """The error's message; where a worker made it, it begins with the field's name."""
        name, own = error.param, self.param(error)
        if name is None or own is None or not error.message.startswith((f"{name}:", f"{name} ")):
            return error.message
        return own + error.message.removeprefix(name)


RESPONSES = OwnTerms(
    {
        "messages": "input",
        "response_format": "text.format",
        "max_tokens": "max_output_tokens",
        "reasoning_effort": "reasoning.effort",
    },
    function={},
)
ANTHROPIC = OwnTerms(
    {
        "response_format": "output_config.format",
        "reasoning": "thinking",
        "reasoning_effort": "output_config.effort",
        "stop": "stop_sequences",
    },
    function={"parameters": "input_schema"},
)
OLLAMA = OwnTerms(
    {
        "response_format": "format",
        "reasoning": "think",
        "reasoning_effort": "think",
        "max_tokens": "options.num_predict",
        "stop": "options.stop",
    }
)
