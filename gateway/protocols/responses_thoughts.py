"""Reasoning items: how thinking is given out, and how it is read when it comes back.

``encrypted_content`` is the thinking in a form that clients keep and send back without looking into it, for conversations that
are not stored. Nothing is secret about it here, where the text itself stands beside it: it is encoded, not encrypted.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from gateway.errors import InvalidRequest

__all__ = ["sealed", "thought_of"]

_MARK = "innkeeper1."


def sealed(thought: str) -> str:
    """The thinking as ``encrypted_content``."""
    return _MARK + base64.urlsafe_b64encode(thought.encode()).decode()


def thought_of(item: dict[str, Any], field: str) -> str:
    """The thinking of an item: its content, or what is sealed in it, or its summary. InvalidRequest for another's seal."""
    if item.get("content"):
        return "\n".join(part["text"] for part in item["content"])
    if "encrypted_content" in item:
        return _opened(item["encrypted_content"], f"{field}.encrypted_content")
    return "\n".join(part["text"] for part in item.get("summary") or ())


def _opened(seal: str, field: str) -> str:
    try:
        if not seal.startswith(_MARK):
            raise ValueError("it has no mark of ours")
        return base64.b64decode(seal.removeprefix(_MARK), altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error) as error:
        message = f"{field} cannot be read: it was not made by this kind of server; leave the item out"
        raise InvalidRequest(message, param=field) from error
