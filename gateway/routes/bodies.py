"""Reading request bodies in routes, and the ids and numbers answers go by."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

from gateway.errors import InvalidRequest, WrongContentType
from gateway.protocols.completion import AnswerHead
from gateway.protocols.options import Limits
from gateway.registry.catalog import ResolvedModel

__all__ = ["form_model", "json_bytes", "new_head", "optional_json_bytes", "parsed_json", "sibling_numbers"]

Parsed = TypeVar("Parsed")

sibling_numbers = itertools.count(1)
"""One for each prompt that has several choices; no two prompts of this process get the same."""

_INLINE_BYTES = 256 * 1024  # parsed within a few milliseconds


async def parsed_json(request: Request, parse: Callable[[bytes, Limits], Parsed], limits: Limits) -> Parsed:
    """What ``parse`` makes of the body of a JSON route. A large one is parsed in a thread: it may take a second, in which
    every stream and ``/health`` would stand still.
    """
    body = await json_bytes(request)
    if len(body) <= _INLINE_BYTES:
        return parse(body, limits)
    return await asyncio.to_thread(parse, body, limits)


async def json_bytes(request: Request) -> bytes:
    """The body of a JSON route. WrongContentType unless it says that it is JSON: other types need no CORS preflight."""
    _check_content_type(request, "application/json")
    return await request.body()


async def form_model(request: Request) -> str:
    """The field ``model`` of a form with files. InvalidRequest where it is missing or is no text."""
    _check_content_type(request, "multipart/form-data")
    async with request.form() as form:
        model = form.get("model")
    if not isinstance(model, str) or not model:
        what = "is missing" if model is None else "is not a text"
        raise InvalidRequest(f"model {what}; it must be a string of at least one character", param="model")
    return model


def _check_content_type(request: Request, needed: str) -> None:
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != needed:
        said = f"is {content_type[:100]!r}" if content_type else "is missing"
        raise WrongContentType(f"content-type {said}; this route needs {needed}")


async def optional_json_bytes(request: Request) -> bytes:
    """The body of a route that does without one, empty where there is none. WrongContentType as above."""
    body = await request.body()
    return await json_bytes(request) if body else b""


def new_head(prefix: str, model: ResolvedModel, joint: str = "-") -> AnswerHead:
    """A new answer's id, its time and its model."""
    return AnswerHead(
        id=f"{prefix}{joint}{os.urandom(16).hex()}",
        created=int(time.time()),
        model=model.id,
        fingerprint=f"fp_{model.resident_key[:12]}",
    )
