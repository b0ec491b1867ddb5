"""A gateway that says what a test tells it to, on a real socket; and a terminal for the command that talks to it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BOUND_S = 30.0  # how long a test waits for what must happen

MODELS: list[dict[str, Any]] = [
    {"id": "embedder", "task": "embedding", "aliases": [], "context": 512, "footprint_bytes": 1 << 20, "error": None},
    {"id": "first", "task": "text", "aliases": ["one"], "context": 2048, "footprint_bytes": 3 << 20, "error": None},
    {"id": "second", "task": "text", "aliases": ["default"], "context": None, "footprint_bytes": None, "error": None},
    {
        "id": "broken",
        "task": "text",
        "aliases": [],
        "error": {"code": "model_load_failed", "message": "x.gguf: no such file"},
    },
]


def event(text: str) -> bytes:
    return data({"choices": [{"index": 0, "delta": {"content": text}}]})


def data(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


DONE = b": keep-alive\n\ndata: [DONE]\n\n"


class ScriptedGateway:
    """Answers ``/v1/models`` with ``models`` and a chat with ``status`` and ``blocks``; records what it was asked.

    ``pages`` are bodies by path; ``refusal``, when set, is the answer to everything.
    """

    def __init__(self) -> None:
        self.models: Any = {"object": "list", "data": MODELS}
        self.status = 200
        self.blocks: list[bytes] = [event("Hello"), event(" there"), DONE]
        self.hold: threading.Event | None = None  # set: wait for it after the blocks
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.client_left = threading.Event()
        self.pages: dict[str, bytes] = {}
        self.refusal: tuple[int, dict[str, Any]] | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.keys.append(self.headers["authorization"])
                if outer.refusal is not None:
                    self._send(*outer.refusal)
                    return
                if self.path in outer.pages:
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(outer.pages[self.path])
                    return
                self._send(200 if outer.models is not None else 401, outer.models or ERROR_401)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
                if outer.refusal is not None:
                    self._send(*outer.refusal)
                    return
                outer.requests.append(body)
                if outer.status != 200:
                    self._send(outer.status, {"error": {"message": "this model has no chat template"}})
                    return
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                for block in outer.blocks:
                    self.wfile.write(block)
                if outer.hold is not None:
                    self._wait_until_client_leaves()

            def log_message(self, *_args: object) -> None:
                pass

            def _send(self, status: int, value: object) -> None:
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _wait_until_client_leaves(self) -> None:
                # Keep-alives as the gateway sends them: they also wake a client whose signal came just before it blocked.
                deadline = time.monotonic() + BOUND_S
                while time.monotonic() < deadline:
                    readable, _, _ = select.select([self.connection], [], [], 0.1)
                    try:
                        if readable and self.connection.recv(1) == b"":
                            break
                        self.wfile.write(b": keep-alive\n\n")
                    except OSError:
                        break
                outer.client_left.set()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


ERROR_401 = {"error": {"message": "no such key"}}


def environment(url: str, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INNKEEPER_")}
    return {**kept, "INNKEEPER_URL": url, "TERM": "dumb", "PYTHONUNBUFFERED": "1", **more}


def innkeeper(
    *args: str, url: str = "http://127.0.0.1:9", stdin: str | None = None, cwd: Any = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", *args],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=BOUND_S * 2,
        env=environment(url, **env),
        cwd=cwd,
    )


# The terminal becomes the process's own, so that a typed Ctrl-C is a signal to it.
_ON_A_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from gateway.cli import main
sys.exit(main(sys.argv[1:]))
"""


class Terminal:
    """A command with a pseudo-terminal for all three of its streams."""

    def __init__(self, env: Mapping[str, str], *args: str) -> None:
        self._controller, terminal = pty.openpty()
        command = [sys.executable, "-c", _ON_A_TERMINAL, *args]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=terminal,
                stdout=terminal,
                stderr=terminal,
                env=dict(env),
                start_new_session=True,
            )
        finally:
            os.close(terminal)
        self._unread = ""

    def type(self, text: str) -> None:
        os.write(self._controller, text.encode())

    def read_until(self, text: str) -> str:
        """What appears up to and with ``text``."""
        deadline = time.monotonic() + BOUND_S
        while text not in self._unread:
            readable, _, _ = select.select([self._controller], [], [], max(0.0, deadline - time.monotonic()))
            block = b""
            if readable:
                with contextlib.suppress(OSError):  # Linux answers EIO once the other side is closed
                    block = os.read(self._controller, 65536)
            assert block, f"{text!r} did not appear; seen: {self._unread!r}"
            self._unread += block.decode(errors="replace")
        seen, self._unread = self._unread.split(text, 1)
        return seen + text

    def wait(self) -> int:
        return self.process.wait(BOUND_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._controller)


@contextlib.contextmanager
def scripted_gateway() -> Iterator[ScriptedGateway]:
    gateway = ScriptedGateway()
    try:
        yield gateway
    finally:
        gateway.close()


@contextlib.contextmanager
def terminal(url: str, *args: str) -> Iterator[Terminal]:
    opened = Terminal(environment(url), *args)
    try:
        yield opened
    finally:
        opened.close()
