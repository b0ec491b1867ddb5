"""The tokenizer process from the gateway's side: its socket, its requests under way."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from itertools import count

from engines.wire import (
    Answered,
    Chunk,
    Forget,
    FrameError,
    FromTokenizer,
    Hello,
    Refused,
    TokenizerAnswer,
    TokenizerRequest,
    ask_frames,
    decode_answer,
    decode_from_tokenizer,
    encode_frame,
)
from gateway.errors import WorkerDied, from_wire
from gateway.residency.frame_socket import FrameSocket
from gateway.residency.worker_process import WorkerCommand, WorkerExit, WorkerProcess

__all__ = ["TokenizerHost"]

_EXIT_AFTER_EOF_S = 2.0


class TokenizerHost:
    """Starts the process and asks it. Belongs to the event loop's thread; nothing blocks.

    However it ends, each request under way gets WorkerDied, then ``on_exit`` is called. ``on_change`` is called when its memory may
    have changed.
    """

    def __init__(
        self,
        command: WorkerCommand,
        *,
        on_change: Callable[[], None],
        on_exit: Callable[[TokenizerHost, WorkerExit], None],
    ) -> None:
        """OSError when the command cannot be run."""
        self._loop = asyncio.get_running_loop()
        self._on_change = on_change
        self._on_exit = on_exit
        self._ids = count(1)
        self._answers: dict[int, asyncio.Future[TokenizerAnswer]] = {}
        self._parts: dict[int, bytearray] = {}  # of answers that come in chunks
        self._cause: str | None = None
        self._exit_timer: asyncio.TimerHandle | None = None
        self.greeted = False
        self.heard_at = self._loop.time()  # when it last said something
        ours, theirs = socket.socketpair()
        try:
            self._process = WorkerProcess(command, theirs.fileno(), self._exited)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._frames: FrameSocket[FromTokenizer] = FrameSocket(
            ours, decode=decode_from_tokenizer, on_message=self._message, on_lost=self._lost
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, request: TokenizerRequest) -> TokenizerAnswer:
        """The answer, or the error it is refused with. Cancelled, the process is told that nobody waits."""
        request_id = next(self._ids)
        answer: asyncio.Future[TokenizerAnswer] = self._loop.create_future()
        self._answers[request_id] = answer
        self._frames.send_request(request_id, ask_frames(request_id, request))
        try:
            return await answer
        finally:
            if self._answers.pop(request_id, None) is not None:
                self._parts.pop(request_id, None)
                self._frames.withdraw(request_id)
                self._frames.send(encode_frame(Forget(request_id=request_id)))

    def close(self) -> None:
        """Lets it end by itself; it is killed if it does not."""
        self._frames.close()
        self._end_soon()

    def kill(self, cause: str | None = None) -> None:
        """``cause`` completes "The tokenizer process …"."""
        self._cause = self._cause or cause
        self._process.kill_group()

    def _message(self, message: FromTokenizer) -> None:
        self.heard_at = self._loop.time()
        match message:
            case Hello():
                self.greeted = True
                self._on_change()
            case Chunk(request_id=request_id, data=data):
                if request_id in self._answers:
                    self._parts.setdefault(request_id, bytearray()).extend(data)
            case Answered(request_id=request_id, answer=answer):
                if request_id in self._answers:
                    self._answer(request_id, answer)
                self._on_change()
            case Refused(request_id=request_id, error=error):
                waiting = self._answers.pop(request_id, None)
                if waiting is not None and not waiting.done():
                    waiting.set_exception(from_wire(error))
                self._on_change()

    def _answer(self, request_id: int, answer: TokenizerAnswer | None) -> None:
        if answer is None:
            if request_id not in self._parts:
                raise FrameError(f"the answer to request {request_id} has no body")
            answer = decode_answer(bytes(self._parts.pop(request_id)))
        waiting = self._answers.pop(request_id)
        if not waiting.done():
            waiting.set_result(answer)

    def _lost(self, why: str | None) -> None:
        if why is not None:
            self.kill(why)
        else:
            self._end_soon()

    def _end_soon(self) -> None:
        if self._exit_timer is None:
            self._exit_timer = self._loop.call_later(_EXIT_AFTER_EOF_S, self.kill)

    def _exited(self, exit: WorkerExit) -> None:
        self._frames.drain()
        self._frames.close()
        if self._exit_timer is not None:
            self._exit_timer.cancel()
        how = self._cause or exit.describe()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(
                    WorkerDied(f"The tokenizer process {how}; ask again", retry_after_s=1.0, retry=True)
                )
        self._on_exit(self, exit)
