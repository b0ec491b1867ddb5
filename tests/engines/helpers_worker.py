"""A worker process spoken to over its bare socket, without the gateway's code."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from engines.wire import (
    Event,
    Events,
    Failed,
    Finished,
    FrameDecoder,
    LoadModel,
    ModelSpec,
    SimulateSpec,
    TextPrompt,
    TextRequest,
    ToGateway,
    ToWorker,
    decode_to_gateway,
    encode_frame,
)

BOUND_S = 30.0
PROJECT = Path(__file__).parents[2]

Message = TypeVar("Message")


class RawWorker:
    """``engine`` names a module whose ``build`` takes the simulated engine's place, ``text_stack`` what is imported ahead."""

    def __init__(
        self, *arguments: str, engine: str = "engines.simulated", text_stack: str = "engines.text.loader"
    ) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(BOUND_S)
        code = (
            "from engines import device_thread, worker; "
            f"device_thread.ENGINES['text', 'sim'] = {engine!r}; worker.TEXT_STACK = {text_stack!r}; worker.main()"
        )
        own = ["--fd", str(theirs.fileno()), "--parent", str(os.getpid())]
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *own, *arguments],
            cwd=PROJECT,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        self._decoder = FrameDecoder()
        self._unread: list[ToGateway] = []

    def send(self, *messages: ToWorker) -> None:
        for message in messages:
            self.socket.sendall(encode_frame(message))

    def messages(self) -> Iterator[ToGateway]:
        """Until the worker closes its end."""
        while True:
            while self._unread:
                yield self._unread.pop(0)
            data = self.socket.recv(2**18)
            if not data:
                return
            self._unread += [decode_to_gateway(body) for body in self._decoder.feed(data)]

    def events(self) -> Iterator[Event]:
        for message in self.messages():
            if isinstance(message, Events):
                yield from message.events

    def answers(self, count: int = 1) -> list[Event]:
        """The events up to and with the terminal ones of ``count`` requests."""
        seen: list[Event] = []
        for event in self.events():
            seen.append(event)
            count -= isinstance(event, Finished | Failed)
            if count == 0:
                return seen
        raise AssertionError(f"the worker ended before its answers: {self.stderr()}")

    def next(self, kind: type[Message]) -> Message:
        """The next message of this kind; what comes before it is dropped."""
        for message in self.messages():
            if isinstance(message, kind):
                return message
        raise AssertionError(f"the worker ended before {kind.__name__}: {self.stderr()}")

    def stderr(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def wait(self) -> int:
        return self.process.wait(BOUND_S)


@contextmanager
def raw_worker(*arguments: str, **modules: str) -> Iterator[RawWorker]:
    """A worker that is gone when the block ends."""
    worker = RawWorker(*arguments, **modules)
    try:
        yield worker
    finally:
        worker.process.kill()
        worker.process.wait(BOUND_S)
        assert worker.process.stderr is not None
        worker.process.stderr.close()
        worker.socket.close()


def simulated_load(**simulate: float) -> LoadModel:
    spec = SimulateSpec(**{"weights_bytes": 1000, **simulate})  # type: ignore[arg-type]
    return LoadModel(spec=ModelSpec(id="sim", task="text", format="sim", paths=(), simulate=spec))


def words(count: int, text: str = "hello") -> TextRequest:
    return TextRequest(prompt=TextPrompt(text=text), max_tokens=count)


class CpuIdle:
    """Called again and again, true once the process has used no CPU time for a tenth of a second, and wanted none."""

    def __init__(self, pid: int) -> None:
        self._process = Path("/proc") / str(pid)
        self._used = ""
        self._since = 0.0

    def __call__(self) -> bool:
        used = " ".join(_stat(self._process)[11:13])
        wants = any(_stat(thread)[0] == "R" for thread in (self._process / "task").iterdir())
        if used != self._used or wants:
            self._used, self._since = used, time.monotonic()
        return time.monotonic() - self._since > 0.1


def _stat(process: Path) -> list[str]:
    """The fields of a process's or thread's ``stat`` from its state on."""
    return (process / "stat").read_text().rpartition(")")[2].split()


def state(pid: int) -> str:
    """The letter that ``ps`` has for it, on Linux and macOS; nothing where there is no such process."""
    ps = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return ps.stdout.strip()[:1]


def lives(pid: int) -> bool:
    """False for a zombie too: nobody may be there to reap an orphan."""
    return state(pid) not in ("", "Z", "X")


def until(holds: Callable[[], bool]) -> None:
    """Looks again and again, for BOUND_S at most."""
    deadline = time.monotonic() + BOUND_S
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"


def stop(pid: int) -> None:
    """SIGSTOP, and waits until the process has stopped."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state(pid) == "T")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Within the block this process does nothing."""
    stop(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
