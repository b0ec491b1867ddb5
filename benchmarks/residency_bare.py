"""A bare Starlette app under uvicorn which answers with bytes that are ready: what the gateway is measured against.

``python benchmarks/residency_bare.py`` reads one JSON line from stdin, path → list of texts, prints its URL and serves until it
is killed. A POST to a path has its JSON decoded, and is answered with the texts: with one as a whole answer, with several as a
streamed one, a text a chunk. Loop and HTTP protocol are the gateway's (uvloop, httptools), and uvicorn's access log is off, as
there.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

__all__ = ["BareProcess", "bare_process"]


@dataclass(frozen=True)
class BareProcess:
    """One that answers."""

    url: str
    pid: int


@contextmanager
def bare_process(answers: Mapping[str, Sequence[bytes]]) -> Iterator[BareProcess]:
    """The app in a process of its own; ``answers`` has the pieces of each path's answer."""
    process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        texts = {path: [piece.decode() for piece in pieces] for path, pieces in answers.items()}
        process.stdin.write(json.dumps(texts) + "\n")
        process.stdin.flush()
        yield BareProcess(process.stdout.readline().strip(), process.pid)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _whole(body: bytes) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        await request.json()
        return Response(body, media_type="application/json")

    return answer


def _streamed(pieces: Sequence[bytes]) -> Callable[[Request], Awaitable[Response]]:
    async def stream() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def answer(request: Request) -> Response:
        await request.json()
        return StreamingResponse(stream(), media_type="text/event-stream")

    return answer


def main() -> None:
    answers = {path: [text.encode() for text in texts] for path, texts in json.loads(sys.stdin.readline()).items()}
    routes = [
        Route(path, _whole(pieces[0]) if len(pieces) == 1 else _streamed(pieces), methods=["POST"])
        for path, pieces in answers.items()
    ]
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = uvicorn.Config(Starlette(routes=routes), ws="none", lifespan="off", log_config=None, access_log=False)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        runner.run(uvicorn.Server(config).serve([listener]))


if __name__ == "__main__":
    main()
