"""A gateway in a process of its own, driven over HTTP as its clients and operators do.

Waits are on the event feed (``/admin/events``) or on an answer, each with a bound. Nothing sleeps but as a stimulus.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import httpx

__all__ = ["Answer", "Gateway", "Stream", "Transition", "bounded", "children", "running_gateway", "still_there"]

READY = b"Innkeeper is ready at "
BOUND_S = 60.0  # of one wait or answer, a real model's on a busy machine too
Result = TypeVar("Result")


async def bounded(wait: Awaitable[Result], seconds: float = BOUND_S) -> Result:
    """The result, or a failed test after ``seconds``."""
    async with asyncio.timeout(seconds):
        return await wait


@dataclass(frozen=True)
class Transition:
    """One line of the event feed."""

    at: float  # seconds since the epoch
    model: str
    source: str
    to: str
    cause: str | None
    charged_bytes: int


@dataclass
class Answer:
    """What a request was answered with."""

    status: int
    text: str = ""
    code: str | None = None  # of the error
    message: str = ""
    done: bool = False  # the end marker came
    headers: dict[str, str] = field(default_factory=dict)


class Stream:
    """A streamed chat, read as it comes."""

    def __init__(self, response: httpx.Response, close: Callable[[], Awaitable[None]]) -> None:
        self._lines = response.aiter_lines()
        self._close = close
        self.answer = Answer(response.status_code, headers=dict(response.headers))

    async def first_text(self) -> None:
        """Returns once some text is there."""
        await bounded(self._read(lambda: bool(self.answer.text)))

    async def end(self) -> Answer:
        """Reads to the end of the stream."""
        await bounded(self._read(lambda: False))
        await self._close()
        return self.answer

    async def leave(self) -> None:
        """The client closes its connection."""
        await self._close()

    async def _read(self, enough: Callable[[], bool]) -> None:
        while not enough():
            line = await anext(self._lines, None)
            if line is None:
                return
            if not line.startswith("data: "):
                continue
            assert not self.answer.done, f"after the end marker came {line!r}"
            if line == "data: [DONE]":
                self.answer.done = True
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                self.answer.code, self.answer.message = chunk["error"]["code"], chunk["error"]["message"]
            elif chunk["choices"]:
                self.answer.text += chunk["choices"][0]["delta"].get("content") or ""


class Gateway:
    """One running gateway."""

    def __init__(self, process: asyncio.subprocess.Process, client: httpx.AsyncClient, registry: Path) -> None:
        self.process = process
        self.client = client
        self.registry = registry
        self.transitions: list[Transition] = []
        self.warnings: list[str] = []
        self._changed = asyncio.Condition()

    async def chat(self, model: str, max_tokens: int = 2, **fields: Any) -> Answer:
        """A chat that is not streamed."""
        response = await bounded(self.client.post("/v1/chat/completions", json=_body(model, max_tokens, **fields)))
        body = response.json()
        answer = Answer(response.status_code, headers=dict(response.headers))
        if "error" in body:
            answer.code, answer.message = body["error"]["code"], body["error"]["message"]
        else:
            answer.text = body["choices"][0]["message"]["content"]
        return answer

    async def stream(self, model: str, max_tokens: int = 2) -> Stream:
        """A streamed chat, from its headers on."""
        body = _body(model, max_tokens, stream=True)
        manager = self.client.stream("POST", "/v1/chat/completions", json=body)
        response = await bounded(manager.__aenter__())

        async def close() -> None:
            await manager.__aexit__(None, None, None)

        return Stream(response, close)

    def ask(self, model: str, max_tokens: int = 2) -> asyncio.Task[Answer]:
        """A chat in a task of its own: cancelling the task is a client that leaves."""
        return asyncio.create_task(self.chat(model, max_tokens))

    async def admin(self, method: str, path: str, **body: Any) -> tuple[int, Any]:
        """An operator's call."""
        request = self.client.build_request(method, f"/admin{path}", json=body if method == "POST" else None)
        response = await bounded(self.client.send(request))
        return response.status_code, response.json() if response.content else None

    async def status(self) -> Any:
        return (await self.admin("GET", "/status"))[1]

    async def model(self, model: str) -> Any:
        return (await self.admin("GET", f"/models/{model}"))[1]

    async def worker_pid(self, model: str) -> int:
        workers = (await self.status())["workers"]
        return int(next(worker["pid"] for worker in workers if worker["model"] == model))

    async def transition(self, model: str, to: str, *, count: int = 1, seconds: float = BOUND_S) -> Transition:
        """The ``count``-th time the model came to this state, from the gateway's start on."""

        def found() -> list[Transition]:
            return [step for step in self.transitions if step.model == model and step.to == to]

        async with self._changed:
            await bounded(self._changed.wait_for(lambda: len(found()) >= count), seconds)
        return found()[count - 1]

    async def warning(self, text: str) -> str:
        """The first warning with this text in it, from the gateway's start on."""

        def found() -> list[str]:
            return [warning for warning in self.warnings if text in warning]

        async with self._changed:
            await bounded(self._changed.wait_for(lambda: bool(found())))
        return found()[0]

    async def quiet(self) -> Any:
        """The status once no lease is out; each look at it is a request, and so a turn of the gateway's loop."""

        async def settle() -> Any:
            while True:
                status = await self.status()
                if not status["leases"] and not status["queue"]:
                    return status

        return await bounded(settle())

    async def steps(self, model: str) -> list[str]:
        """The states the model came to, in order, up to now.

        The feed is another connection than the one that an answer came on, so it may be behind: until it tells of the state
        and the generation that the model is known to have.
        """
        now = await self.model(model)

        def seen() -> list[str]:
            return [step.to for step in self.transitions if step.model == model]

        def caught_up() -> bool:
            loads = 0
            for state in ("unloaded", *seen()):
                loads += state == "loading"
                if (state, loads) == (now["state"], now["generation"]):
                    return True
            return False

        async with self._changed:
            await bounded(self._changed.wait_for(caught_up))
        return seen()

    async def rewrite(self, text: str) -> tuple[int, Any]:
        """Another registry in the same file, and a reload."""
        self.registry.write_text(text)
        return await self.admin("POST", "/registry/reload")

    async def follow(self, feed: httpx.Response) -> None:
        """Reads the event feed for ever."""
        async for line in feed.aiter_lines():
            if not line.startswith("data: "):
                continue
            event = json.loads(line.removeprefix("data: "))
            async with self._changed:
                if "message" in event:
                    self.warnings.append(event["message"])
                else:
                    event["source"] = event.pop("from")
                    if event["source"] != event["to"]:  # else it says that a state goes on
                        self.transitions.append(Transition(**event))
                self._changed.notify_all()


def _body(model: str, max_tokens: int, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "go on"}
    return {"model": model, "messages": [message], "max_tokens": max_tokens, **fields}


@asynccontextmanager
async def running_gateway(
    directory: Path, registry: str, *, environment: dict[str, str] | None = None
) -> AsyncIterator[Gateway]:
    """Serves this registry text on a free port; at the end it is terminated, and must exit 0 and leave no worker."""
    path = directory / "registry.yaml"
    path.write_text(registry)
    with _log(directory) as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway.cli", "serve", "--registry", str(path), "--port", "0"),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={**os.environ, "XDG_STATE_HOME": str(directory / "state"), **(environment or {})},
        )
        try:
            url = await bounded(_ready(process))
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
            async with httpx.AsyncClient(base_url=url, timeout=BOUND_S, limits=limits) as client:
                gateway = Gateway(process, client, path)
                async with client.stream("GET", "/admin/events", timeout=None) as feed:
                    follower = asyncio.create_task(gateway.follow(feed))
                    try:
                        yield gateway
                    finally:
                        follower.cancel()
                        await asyncio.gather(follower, return_exceptions=True)
                if process.returncode is None:
                    workers = children(process.pid)
                    process.send_signal(signal.SIGTERM)
                    assert await bounded(process.wait()) == 0, _log_text(directory)
                    assert still_there(workers) == []
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            transport = process._transport  # type: ignore[attr-defined]
            transport.close()


def _log(directory: Path) -> BinaryIO:
    return (directory / "gateway.log").open("wb")


def _log_text(directory: Path) -> str:
    return (directory / "gateway.log").read_text()


def still_there(pids: list[int]) -> list[int]:
    """Those of these processes that exist (Linux)."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def _ready(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async for line in process.stdout:
        if line.startswith(READY):
            return line.removeprefix(READY).strip().decode()
    raise AssertionError("the gateway ended before it was ready")


def children(pid: int) -> list[int]:
    """Direct children of a process (Linux)."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
