"""``thinking``, effort, and the blocks in which thinking is answered and sent back.

A block's signature is what a client must send back unread. Here it says by whom the block was made, and where the request wants
thinking ``omitted`` it holds the thinking itself, so that the model has it again in the next request.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from gateway.errors import InvalidRequest
from gateway.protocols.anthropic_blocks import read_text_field
from gateway.protocols.options import MAX_TOKENS, read_choice, read_integer, read_object
from gateway.protocols.options import shown as as_shown
from gateway.registry.reasoning_settings import Effort, ReasoningSettings

__all__ = ["DISPLAYS", "EFFORTS", "THINKING_FIELDS", "Thoughts", "read_thinking", "signature_of", "thought_in"]

Thoughts = Literal["shown", "omitted", "hidden"]
"""In an answer: blocks with their text, blocks with a signature alone, or no blocks."""

DISPLAYS = ("summarized", "omitted")
THINKING_FIELDS = {
    "enabled": ("type", "budget_tokens", "display"),
    "adaptive": ("type", "display"),
    "disabled": ("type",),
}
# The two beyond it are Claude's own; templates know three.
EFFORTS: dict[str, Effort] = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}

_SIGNED = "innkeeper"
_HOLDS = f"{_SIGNED}."


def read_thinking(options: Mapping[str, Any], output_config: Mapping[str, Any]) -> tuple[ReasoningSettings, Thoughts]:
    """What is asked of the model, and what the answer shows of its thinking.

    ``enabled`` and ``adaptive`` are the same to a local model: it decides by itself how much to think, up to the budget. One
    that thinks although it is ``disabled`` does so unseen.
    """
    asked = {"output_config.effort": output_config.get("effort")}
    effort = read_choice(asked, "output_config.effort", tuple(EFFORTS))
    settings = ReasoningSettings(effort=None if effort is None else EFFORTS[effort])
    given = options.get("thinking")
    if given is None:
        return settings, "shown"
    if not isinstance(given, dict):
        raise InvalidRequest(f"thinking is {as_shown(given)}; it must be an object with a type", param="thinking")
    kind = given.get("type")
    if kind not in THINKING_FIELDS:
        message = f"thinking.type is {as_shown(kind)}; it must be one of {', '.join(THINKING_FIELDS)}"
        raise InvalidRequest(message, param="thinking.type")
    read_object(options, "thinking", THINKING_FIELDS[kind])
    fields = {f"thinking.{name}": value for name, value in given.items()}
    settings = msgspec.structs.replace(
        settings,
        enabled=kind != "disabled",
        budget=read_integer(fields, "thinking.budget_tokens", 1, MAX_TOKENS),
    )
    omitted = read_choice(fields, "thinking.display", DISPLAYS) == "omitted"
    return settings, "hidden" if kind == "disabled" else "omitted" if omitted else "shown"


def signature_of(thought: str, *, shown: bool) -> str:
    """The signature of a block with this thinking, or of an empty one in its place."""
    return _SIGNED if shown else _HOLDS + b64encode(thought.encode()).decode()


def thought_in(block: Mapping[str, Any], field: str) -> str:
    """The thinking of a block that a client sent back; empty where it is another server's secret."""
    thought, signature = read_text_field(block, field, "thinking"), block.get("signature")
    if signature is not None:
        read_text_field(block, field, "signature")
    if thought or not isinstance(signature, str) or not signature.startswith(_HOLDS):
        return thought
    try:
        return b64decode(signature.removeprefix(_HOLDS), validate=True).decode()
    except ValueError:
        where = f"{field}.signature"
        raise InvalidRequest(f"{where} is not one of this server's; send it back as it was", param=where) from None
