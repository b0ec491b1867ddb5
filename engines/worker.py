"""The worker process: one resident model behind one socket (``python -m engines.worker --fd N --parent PID``).

::

    main thread (asyncio)                      device thread (device_thread.py)
      frames in ──> LoadModel, Close, … ──────>  commands, in order
                    Submit ─> prepare on a thread ──> engine.submit   (here, where an engine prepares at once)
                    Cancel ───────────────────>  engine.cancel; the next step answers
      frames out <───────────────────────────  one Events frame a tick

It starts with the text stack's imports (``--bare``: without, for simulated models), says ``Hello``, and touches no device until
``LoadModel``. It ends

- with the gateway: at end of file, at a breach of the protocol and, on Linux, by the parent-death signal;
- after ``Close`` or a failed load, when its last frame is out;
- when the engine breaks: admitted requests are answered, the trace goes to stderr, the status is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from queue import SimpleQueue
from typing import Any

from engines.device_thread import TEXT_STACK, DeviceThread
from engines.errors import EngineError
from engines.heap import set_up_heap
from engines.interface import PreparesAtOnce, ServingEngine
from engines.parent_death import die_with_parent
from engines.wire import (
    Cancel,
    Chunk,
    Close,
    DenyGrowth,
    Event,
    Failed,
    Finished,
    FrameError,
    Hello,
    LoadModel,
    Request,
    SetCores,
    SetGrant,
    Shed,
    Submit,
    TextRequest,
    ToWorker,
    Usage,
    WireError,
    decode_request,
    encode_frame,
    events_frames,
    to_wire,
)
from engines.worker_channel import Channel, ChunkAssembler

__all__ = ["Worker", "main"]

_PREPARE_THREADS = 2
_LAST_FRAMES_S = 2.0  # a gateway that does not read the last frames in this time is left behind
_SWITCH_INTERVAL_S = 0.0005  # the device thread must not keep the socket waiting for the GIL (Python's default is 5 ms)
_SPARE_NICENESS = 10

logger = logging.getLogger("innkeeper.worker")


class Worker:
    """The main thread's side. Fields are touched on the loop's thread only, but for the hand-over of what was prepared."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.channel = Channel(on_message=self._receive, on_lost=self._lost, on_room=self._has_room)
        self._device = DeviceThread(
            self.channel,
            on_ready=lambda engine: self._call(self._ready, engine),
            on_end=lambda status: self._call(self._end, status),
        )
        self._engine: ServingEngine | None = None
        self._prepares_at_once = False
        self._chunks = ChunkAssembler()
        self._preparing: set[int] = set()  # submitted, not yet handed to the device thread
        self._handing_over = threading.Lock()  # a request is either in that set or known to the device thread
        self._unprepared: SimpleQueue[tuple[ServingEngine, int, Request | bytes]] = SimpleQueue()
        for _ in range(_PREPARE_THREADS):
            threading.Thread(target=self._prepare_all, name="prepare", daemon=True).start()
        self._status = 0

    async def serve(self, connection: socket.socket, imports_s: float) -> None:
        """Runs for as long as the process does: every way out is an exit."""
        self._device.start()
        self.channel.post([encode_frame(Hello(pid=os.getpid(), imports_s=imports_s))])
        await self._loop.create_unix_connection(lambda: self.channel, sock=connection)
        await asyncio.Event().wait()

    # --- messages ---

    def _receive(self, message: ToWorker) -> None:
        match message:
            case LoadModel():
                self._device.load(message)
            case Chunk():
                self._chunks.add(message)
            case Submit(request_id=request_id, request=request):
                self._submit(request_id, request)
            case Cancel(request_id=request_id):
                self._cancel(request_id)
            case SetGrant(grant_bytes=grant_bytes):
                self._device.set_grant(grant_bytes)
            case DenyGrowth(request_id=request_id, most_bytes=most_bytes):
                self._device.deny_growth(request_id, most_bytes)
            case Shed(bytes=byte_count):
                self._device.shed(byte_count)
            case SetCores(cores=cores):
                self._device.set_cores(cores)
            case Close():
                for request_id in sorted(self._preparing):
                    self._cancel(request_id)
                self._device.close()

    def _submit(self, request_id: int, request: Request | None) -> None:
        if self._engine is None:
            raise FrameError(f"request {request_id} was submitted before the model was ready")
        what = self._chunks.take_request(request_id) if request is None else request
        self._preparing.add(request_id)
        if self._prepares_at_once and not isinstance(what, bytes):
            self._prepare(self._engine, request_id, what)
        else:
            self._unprepared.put((self._engine, request_id, what))

    def _prepare_all(self) -> None:
        """A thread that prepares: a template or a long prompt may take its time."""
        while True:
            self._prepare(*self._unprepared.get())

    def _prepare(self, engine: ServingEngine, request_id: int, what: Request | bytes) -> None:
        """Prepares a request and hands it over to the device thread."""
        prepared = failure = None
        whole = False
        try:
            request = decode_request(what) if isinstance(what, bytes) else what
            whole = isinstance(request, TextRequest) and request.whole
            prepared = engine.prepare(request)
        except EngineError as error:
            failure = to_wire(error)
        except BaseException as error:  # a panic in the tokenizers library is no Exception, and this thread must go on
            logger.exception("a request could not be prepared")
            failure = WireError(code="internal_error", message=f"The request could not be prepared: {error}")
        with self._handing_over:
            if request_id not in self._preparing:
                return  # cancelled meanwhile, and answered then
            self._preparing.discard(request_id)
            if failure is None:
                self._device.submit(request_id, prepared, whole=whole)
            else:
                self._answer(Failed(request_id=request_id, error=failure))

    def _cancel(self, request_id: int) -> None:
        self._chunks.discard(request_id)
        with self._handing_over:
            if request_id in self._preparing:
                self._preparing.discard(request_id)
                self._answer(Finished(request_id=request_id, reason="cancelled", usage=Usage()))
            else:
                self._device.cancel(request_id)

    def _answer(self, event: Event) -> None:
        self.channel.post(events_frames([event]))

    # --- the device thread's word ---

    def _call(self, callback: Any, *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(callback, *arguments)

    def _has_room(self) -> None:
        self._device.wake()

    def _ready(self, engine: ServingEngine) -> None:
        self._engine = engine
        self._prepares_at_once = isinstance(engine, PreparesAtOnce) and engine.prepares_at_once

    def _end(self, status: int) -> None:
        self._status = status
        self._loop.call_later(_LAST_FRAMES_S, _exit, status)
        self.channel.finish()

    def _lost(self, breach: str | None) -> None:
        if breach is not None:
            logger.error("the gateway broke the protocol: %s", breach)
            _exit(1)
        _exit(self._status)


def _exit(status: int) -> None:
    """Ends the process now: the device thread may be in the middle of a step, and nothing is left for it to do."""
    try:
        logging.shutdown()
        sys.stderr.flush()
    finally:  # also where nobody reads stderr any more
        os._exit(status)


# --- the process ----------------------------------------------------------------------------------------------------


def _import_text_stack(niced: bool) -> None:
    """Imports what a text model needs. A failure is kept for LoadModel, whose answer can say what is wrong.

    A spare is niced while it imports: on a thread of its own, since niceness is a thread's on Linux and cannot be taken back.
    """

    def work() -> None:
        if niced and sys.platform == "linux":
            own = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, own + _SPARE_NICENESS))
        try:
            importlib.import_module(TEXT_STACK)
        except ImportError as error:
            logger.warning("the text stack cannot be imported: %s", error)

    thread = threading.Thread(target=work, name="imports")
    thread.start()
    thread.join()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m engines.worker", description="One worker of the gateway.")
    parser.add_argument("--fd", type=int, required=True, help="inherited descriptor of the socket to the gateway")
    parser.add_argument("--parent", type=int, required=True, help="process id of the gateway")
    parser.add_argument("--bare", action="store_true", help="import no engine ahead of LoadModel")
    parser.add_argument("--spare", action="store_true", help="import at low priority")
    options = parser.parse_args(arguments)
    die_with_parent(options.parent)
    set_up_heap()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the gateway's to answer
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    started = time.monotonic()
    if not options.bare:
        _import_text_stack(options.spare)
    connection = socket.socket(fileno=options.fd)
    connection.setblocking(False)

    async def serve() -> None:
        await Worker().serve(connection, time.monotonic() - started)

    asyncio.run(serve())


if __name__ == "__main__":
    main()
