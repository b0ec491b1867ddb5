"""The base of every message that is a frame of its own."""

from __future__ import annotations

import msgspec

__all__ = ["Message"]


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Tagged with its class name."""
