"""One worker process as the operating system sees it: started, killed as a group, gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["WorkerCommand", "WorkerExit", "WorkerProcess"]

_PACKAGES = Path(__file__).parents[2]  # where gateway and engines lie side by side
_STDERR_LINES = 40
_STDERR_LINE_BYTES = 4096
_STDERR_READ_BYTES = 64 * 1024
_GROUP_POLL_S = 0.02

logger = logging.getLogger("innkeeper.worker")


@dataclass(frozen=True)
class WorkerCommand:
    """How to start a worker: ``module`` is what is run. ``threads`` is what OpenMP and BLAS libraries may use in it."""

    python: str = sys.executable
    arguments: tuple[str, ...] = ()  # --bare, --spare
    threads: int | None = None
    module: str = "engines.worker"

    def argv(self, descriptor: int) -> list[str]:
        own = ("--fd", str(descriptor), "--parent", str(os.getpid()))
        return [self.python, "-m", self.module, *own, *self.arguments]

    def environment(self) -> dict[str, str]:
        """The gateway's own, and thread counts that a person's environment overrules."""
        environment = dict(os.environ)
        if self.threads is not None:
            for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
                environment.setdefault(name, str(self.threads))
            environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # a waiting thread sleeps: other workers want the core
        return environment


@dataclass(frozen=True)
class WorkerExit:
    """How a worker ended. ``status`` is negative for a signal; ``cause`` says why the gateway killed it, where it did."""

    status: int
    stderr: tuple[str, ...]  # its last lines
    cause: str | None = None

    @property
    def signal(self) -> int | None:
        return -self.status if self.status < 0 else None

    def describe(self) -> str:
        """A clause that completes "The worker …": ``was ended by SIGKILL``, ``exited with status 1 (last words: …)``."""
        if self.cause is not None:
            return self.cause
        if self.signal is not None:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(self.signal).name}"
            return f"was ended by signal {self.signal}"
        words = f" (last words: {self.stderr[-1]})" if self.stderr else ""
        return f"exited with status {self.status}{words}"


class WorkerProcess:
    """A process in a group of its own. ``on_exit`` is called once, from the event loop, when no process of the group is left.

    Must be made on the thread that runs the gateway's event loop: Linux ties the parent-death signal to the thread that forked.
    """

    def __init__(self, command: WorkerCommand, descriptor: int, on_exit: Callable[[WorkerExit], None]) -> None:
        """OSError when the command cannot be run."""
        self._loop = asyncio.get_running_loop()
        self._on_exit = on_exit
        self._lines: deque[str] = deque(maxlen=_STDERR_LINES)
        self._rest = b""
        self._status: int | None = None
        self._gone = False  # from here on the group's id may be someone else's
        read_end, write_end = os.pipe()
        try:
            self._popen = subprocess.Popen(
                command.argv(descriptor),
                env=command.environment(),
                cwd=_PACKAGES,  # where ``-m`` looks first
                stdin=subprocess.DEVNULL,
                stdout=write_end,  # a library that prints must not write between the gateway's lines
                stderr=write_end,
                pass_fds=(descriptor,),
                start_new_session=True,
            )
        except OSError:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        self.pid = self._popen.pid
        os.set_blocking(read_end, False)
        self._stderr: int | None = read_end
        self._loop.add_reader(read_end, self._read_stderr)
        threading.Thread(target=self._watch, name=f"watch worker {self.pid}", daemon=True).start()

    @property
    def stderr(self) -> tuple[str, ...]:
        return tuple(self._lines)

    def kill_group(self) -> None:
        """SIGKILL to every process of the group. Idempotent; ``on_exit`` follows."""
        if self._gone:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
            os.killpg(self.pid, signal.SIGKILL)

    def _watch(self) -> None:
        """Waits for the leader's end, without reaping it where the platform can: its id stays its own until the group is
        killed."""
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._popen.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for this any more
            self._loop.call_soon_threadsafe(self._leader_exited)

    def _leader_exited(self) -> None:
        self.kill_group()
        self._status = self._popen.wait()
        while self._read_stderr():
            pass
        self._close_stderr()
        self._look_for_group()

    def _look_for_group(self) -> None:
        if _group_lives(self.pid):
            self._loop.call_later(_GROUP_POLL_S, self._look_for_group)
            return
        self._gone = True
        assert self._status is not None
        self._on_exit(WorkerExit(self._status, tuple(self._lines)))

    def _read_stderr(self) -> bool:
        """One read; True when it brought something."""
        if self._stderr is None:
            return False
        try:
            data = os.read(self._stderr, _STDERR_READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._close_stderr()
            return False
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._add_line(line)
        self._rest = rest[-_STDERR_LINE_BYTES:]
        return True

    def _close_stderr(self) -> None:
        if self._stderr is None:
            return
        if self._rest:
            self._add_line(self._rest)
            self._rest = b""
        self._loop.remove_reader(self._stderr)
        os.close(self._stderr)
        self._stderr = None

    def _add_line(self, line: bytes) -> None:
        text = line[:_STDERR_LINE_BYTES].decode(errors="replace").rstrip()
        if text:
            self._lines.append(text)
            logger.debug("worker %d: %s", self.pid, text)


def _group_lives(group: int) -> bool:
    """True while a process of the group holds anything: zombies, whose memory is gone, do not count on Linux."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    if not sys.platform.startswith("linux"):
        return True
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        state, its_group = fields[0], int(fields[2])
        if its_group == group and state not in "ZX":
            return True
    return False
