"""The model a JSON body names, when nothing else of it can be served yet."""

from __future__ import annotations

from gateway.protocols.json_body import decode_object
from gateway.protocols.options import Limits, read_string

__all__ = ["parse"]


def parse(body: bytes, limits: Limits) -> str:
    """The field ``model``. InvalidRequest where it is missing or not a name."""
    return read_string(decode_object(body, limits.max_values), "model")
