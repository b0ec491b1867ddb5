"""Errors that a worker put in the names of chat's options, in those of the Responses API."""

from __future__ import annotations

import re

from gateway.errors import GatewayError

__all__ = ["in_own_terms"]

_NAMES = {
    "messages": "input",
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
}
_PARAMETERS = re.compile(r"(tools\[\d+\])\.function\.")


def in_own_terms(error: GatewayError) -> GatewayError:
    """The same error, naming the field as the request had it; its message begins with the name where a worker made it."""
    name = error.param
    if name is not None:
        own = _NAMES.get(name) or _PARAMETERS.sub(r"\1.", name)
        if error.message.startswith(f"{name}:") or error.message.startswith(f"{name} "):
            error.message = own + error.message.removeprefix(name)
        error.param = own
    return error
