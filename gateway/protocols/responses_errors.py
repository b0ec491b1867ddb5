"""Errors that a worker put in the names of chat's options, in those of the Responses API."""

from __future__ import annotations

from gateway.errors import GatewayError
from gateway.protocols.own_terms import RESPONSES

__all__ = ["in_own_terms"]


def in_own_terms(error: GatewayError) -> GatewayError:
    """The same error, naming the field as the request had it; its message begins with the name where a worker made it."""
    error.message, error.param = RESPONSES.message(error), RESPONSES.param(error)
    return error
