"""Reading request bodies in routes, and the ids answers go by."""

from __future__ import annotations

import time
import uuid

from starlette.requests import Request

from gateway.errors import WrongContentType
from gateway.protocols.openai_stream import AnswerHead

__all__ = ["json_bytes", "new_head", "optional_json_bytes"]


async def json_bytes(request: Request) -> bytes:
    """The body of a JSON route. WrongContentType unless it says that it is JSON: other types need no CORS preflight."""
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        said = f"is {content_type[:100]!r}" if content_type else "is missing"
        raise WrongContentType(f"content-type {said}; this route needs application/json")
    return await request.body()


async def optional_json_bytes(request: Request) -> bytes:
    """The body of a route that does without one, empty where there is none. WrongContentType as above."""
    body = await request.body()
    return await json_bytes(request) if body else b""


def new_head(prefix: str, model: str) -> AnswerHead:
    """A new answer's id, time and model."""
    return AnswerHead(id=f"{prefix}-{uuid.uuid4().hex}", created=int(time.time()), model=model)
