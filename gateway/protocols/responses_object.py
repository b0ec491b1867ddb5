"""A response as the Responses API shows it: the object around an answer, its items, its usage, its error.

Source of the shapes: OpenAI's API reference, "The response object".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from engines.wire import Finished, Usage
from gateway.errors import GatewayError, InternalError
from gateway.protocols.completion import AnswerHead, Call, Part, Text, Thought
from gateway.protocols.openai_logprobs import chat_logprobs
from gateway.protocols.responses_items import PREFIXES
from gateway.protocols.responses_request import Shape
from gateway.protocols.responses_thoughts import sealed

__all__ = ["Frame", "ItemStatus", "Status", "interrupted", "item_id", "output_item", "status_of", "text_part"]

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]

# The API has few codes of its own for what fails; the gateway's stands in ``type``.
_CODES = {400: "invalid_prompt", 404: "invalid_prompt", 413: "invalid_prompt", 429: "rate_limit_exceeded"}


@dataclass(frozen=True)
class Frame:
    """What is the same of a response from its beginning to its end: its head, and what it says of its request.

    ``now`` tells when it ends, in seconds since the epoch.
    """

    head: AnswerHead
    shown: dict[str, Any]
    shape: Shape
    now: Callable[[], float]

    @property
    def salt(self) -> str:
        """What makes the ids of its items its own."""
        return self.head.id.partition("_")[2]

    def response(
        self,
        status: Status,
        output: Sequence[dict[str, Any]] = (),
        *,
        ended: float | None = None,
        finish: Finished | None = None,
        error: GatewayError | None = None,
        stored: bool = True,
    ) -> dict[str, Any]:
        """The object. ``finish`` is there once it is whole, ``ended`` once it is over, ``error`` where it failed; ``stored`` False:
        keeping it failed."""
        short = status == "incomplete" and finish is not None
        return {
            "id": self.head.id,
            "object": "response",
            "created_at": self.head.created,
            "status": status,
            "completed_at": int(ended) if ended is not None and status == "completed" else None,
            "error": None if error is None else _error(error),
            "incomplete_details": {"reason": "max_output_tokens"} if short else None,
            "model": self.head.model,
            "output": list(output),
            "usage": None if finish is None else _usage(finish.usage),
            "conversation": None,
            "service_tier": "default",
            **self.shown,
            "store": self.shown["store"] and stored,
        }


def output_item(frame: Frame, place: int, part: Part, status: ItemStatus) -> dict[str, Any]:
    """The item that a part of an answer is shown as; ``place`` is its index in the output."""
    match part:
        case Text():
            return {
                "id": item_id(frame, "message", place),
                "type": "message",
                "status": status,
                "role": "assistant",
                "content": [text_part(frame, part)],
            }
        case Thought():
            item: dict[str, Any] = {"id": item_id(frame, "reasoning", place), "type": "reasoning"}
            summary = [{"type": "summary_text", "text": part.text}] if frame.shape.summary else []
            content = [] if frame.shape.summary else [{"type": "reasoning_text", "text": part.text}]
            item |= {"summary": summary, "content": content, "status": status}
            return item | {"encrypted_content": sealed(part.text)} if frame.shape.sealed else item
        case Call():
            return {
                "id": item_id(frame, "function_call", place),
                "type": "function_call",
                "status": status,
                "call_id": part.id,
                "name": part.name,
                "arguments": part.arguments,
            }


def item_id(frame: Frame, kind: str, place: int) -> str:
    """The id of the output's item at this place."""
    return f"{PREFIXES[kind]}_{frame.salt}{place:04x}"


def text_part(frame: Frame, part: Text) -> dict[str, Any]:
    """A message's one part."""
    logprobs = chat_logprobs(part.logprobs)["content"] if frame.shape.logprobs else []
    return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": logprobs}


def status_of(finish: Finished) -> Literal["completed", "incomplete"]:
    """Whether the answer came to its end by itself."""
    return "incomplete" if finish.reason == "length" else "completed"


def interrupted(body: bytes) -> bytes:
    """What a stored response is that was under way in a gateway that is gone."""
    error = InternalError("the gateway ended before this response was whole")
    response = msgspec.json.decode(body)
    return msgspec.json.encode({**response, "status": "failed", "error": _error(error)})


def _error(error: GatewayError) -> dict[str, Any]:
    code = _CODES.get(error.status, "server_error")
    return {"code": code, "message": error.message, "type": error.code, "param": error.param}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
