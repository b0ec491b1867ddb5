"""Bodies are parsed where they hold nobody up."""

from __future__ import annotations

import threading

import pytest
from starlette.requests import Request
from starlette.types import Message

from gateway.errors import InvalidRequest
from gateway.protocols.options import Limits
from gateway.routes.bodies import parsed_json


def request_with(body: bytes) -> Request:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-type", b"application/json")]}
    return Request(scope, receive)


def thread_of_parsing(body: bytes, limits: Limits) -> tuple[int, int, Limits]:
    return threading.get_ident(), len(body), limits


@pytest.mark.parametrize(("size", "in_a_thread"), [(1000, False), (5_000_000, True)])
async def test_parsed_json_leaves_the_loop_alone_for_large_bodies(size: int, in_a_thread: bool) -> None:
    limits = Limits(max_chars=7)
    thread, length, given = await parsed_json(request_with(b"x" * size), thread_of_parsing, limits)
    assert (thread != threading.get_ident()) is in_a_thread
    assert (length, given) == (size, limits)


@pytest.mark.parametrize("size", [1000, 5_000_000])
async def test_parsed_json_raises_what_parsing_raises(size: int) -> None:
    def refuse(body: bytes, limits: Limits) -> None:
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest, match="no"):
        await parsed_json(request_with(b"x" * size), refuse, Limits())
