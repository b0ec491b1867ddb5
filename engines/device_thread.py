"""The one thread of a worker that calls MLX: it builds the model, steps it and lives as long as the worker.

MLX streams belong to threads, and a lazy array built in one and evaluated in another raises; so everything that may touch
an array is a command to this thread. Between commands it steps the engine while the engine is busy and the gateway reads.
"""

from __future__ import annotations

import gc
import importlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, cast

from engines.device import check_backend, release_unused, set_limits
from engines.errors import BackendError, CheckpointError, EngineError, UnsupportedModel
from engines.gatherer import Gatherer
from engines.heap import trim_heap
from engines.interface import BuildEngine, SchedulesRows, ServingEngine, SharesCores
from engines.memory_reports import READ_S, REPORT_S, MemoryReports
from engines.wire import (
    Admitted,
    CapacityReport,
    Closed,
    Event,
    Failed,
    Finished,
    GrowRequest,
    LoadFailed,
    LoadModel,
    LoadProgress,
    Ready,
    Usage,
    WireError,
    encode_frame,
    events_frames,
    to_wire,
)
from engines.worker_channel import Channel

__all__ = ["ENGINES", "TEXT_STACK", "DeviceThread"]

TEXT_STACK = "engines.text.loader"

ENGINES = {
    ("text", "gguf"): TEXT_STACK,
    ("text", "sim"): "engines.simulated",
    ("embedding", "gguf"): "engines.embeddings.loader",
    ("embedding", "safetensors"): "engines.embeddings.loader",
    ("embedding", "sim"): "engines.simulated_texts",
    ("rerank", "gguf"): "engines.rerank.loader",
    ("rerank", "safetensors"): "engines.rerank.loader",
    ("rerank", "sim"): "engines.simulated_texts",
}
"""(task, format) → the module whose ``build`` makes the engine. A new engine is one more line."""

logger = logging.getLogger("innkeeper.worker")


def _look_again() -> None:
    """Nothing to do but what the thread does after every command."""


def _died(what: str) -> WireError:
    """What a request is told when the engine breaks under it."""
    return WireError(code="worker_died", message=f"The model's worker failed while serving this request: {what}")


class DeviceThread:
    """Runs commands in order. Every public method may be called from any thread and returns at once.

    ``on_ready`` and ``on_end`` (with the exit status) are called on this thread, ``on_ready`` before the ``Ready`` frame is
    sent.
    """

    def __init__(
        self, channel: Channel, *, on_ready: Callable[[ServingEngine], None], on_end: Callable[[int], None]
    ) -> None:
        self._channel = channel
        self._on_ready = on_ready
        self._on_end = on_end
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        # The rest belongs to the thread.
        self._engine: ServingEngine | None = None
        self._schedules: SchedulesRows | None = None  # the engine, where it does
        self._memory = MemoryReports()
        self._asked: GrowRequest | None = None  # the last one sent, unless it is settled
        self._capacity: CapacityReport | None = None  # the last one sent
        self._scheduling_sent = 0.0
        self._ran = False  # the engine was busy when its scheduling was last told, or has been since
        self._live: set[int] = set()
        self._admitted: set[int] = set()  # of the live ones
        self._gatherer = Gatherer()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # --- commands ---

    def load(self, load: LoadModel) -> None:
        """Builds the model and answers Ready or LoadFailed."""
        self._do(lambda: self._load(load))

    def submit(self, request_id: int, prepared: Any, *, whole: bool = False) -> None:
        """``whole``: its text need not leave before its end."""
        self._do(lambda: self._submit(request_id, prepared, whole))

    def cancel(self, request_id: int) -> None:
        self._do(lambda: self._engine.cancel(request_id) if self._engine else None)

    def set_grant(self, grant_bytes: int) -> None:
        self._do(lambda: self._set_grant(grant_bytes))

    def deny_growth(self, request_id: int, most_bytes: int) -> None:
        self._do(lambda: self._deny_growth(request_id, most_bytes))

    def shed(self, byte_count: int) -> None:
        self._do(lambda: self._shed(byte_count))

    def set_cores(self, cores: int) -> None:
        self._do(lambda: self._set_cores(cores))

    def close(self) -> None:
        """Ends live requests as cancelled, closes the engine, answers Closed and ends with status 0."""
        self._do(self._close)

    def wake(self) -> None:
        """The channel has room again."""
        self._do(_look_again)

    def _do(self, command: Callable[[], None]) -> None:
        self._commands.put(command)

    # --- the thread ---

    def _run(self) -> None:
        try:
            while not self._ended:
                command = self._first_command()
                while command is not None:
                    command()
                    if self._ended:
                        return
                    command = self._next_command()
                if self._can_step():
                    self._step()
                self._ask_growth()
                self._report_scheduling()
                self._report_memory()
        except Exception as error:  # the worker's last act: every live request is answered, and the process exits
            logger.exception("the engine broke")
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            if not self._ended:  # a library that ends its thread must not leave a worker that never answers
                self._end(1)

    def _first_command(self) -> Callable[[], None] | None:
        """With nothing to step it is waited for, until a report is due."""
        if self._can_step():
            return self._next_command()
        self._channel.flush()
        try:
            return self._commands.get(timeout=self._until_report())
        except Empty:
            return None

    def _next_command(self) -> Callable[[], None] | None:
        return None if self._commands.empty() else self._commands.get()  # no other thread takes any

    def _can_step(self) -> bool:
        return self._engine is not None and self._engine.busy and self._channel.has_room

    def _step(self) -> None:
        assert self._engine is not None
        events = self._engine.step()
        self._ran = True
        self._post_events(events, rest=not self._engine.busy)
        self._memory.stepped()

    def _post_events(self, events: Sequence[Event], *, rest: bool = True) -> None:
        """``rest``: no event follows soon."""
        for event in events:
            if isinstance(event, Admitted):
                self._admitted.add(event.request_id)
            elif isinstance(event, Finished | Failed):
                self._live.discard(event.request_id)
                self._admitted.discard(event.request_id)
        if leaving := self._gatherer.join(events):
            self._channel.post(events_frames(leaving), at_once=rest)

    def _submit(self, request_id: int, prepared: Any, whole: bool) -> None:
        assert self._engine is not None
        self._live.add(request_id)
        if whole:
            self._gatherer.hold(request_id)
        try:
            self._engine.submit(request_id, prepared)
        except EngineError as error:
            self._post_events([Failed(request_id=request_id, error=to_wire(error))])

    def _fail(self, what: str) -> None:
        """Answers the admitted requests. The others end with the connection, so that another worker may serve them."""
        self._post_events([Failed(request_id=request_id, error=_died(what)) for request_id in sorted(self._admitted)])
        self._end(1)

    def _end(self, status: int) -> None:
        self._ended = True
        self._on_end(status)

    # --- load and close ---

    def _load(self, load: LoadModel) -> None:
        try:
            self._build(load)
        except EngineError as error:
            error_on_wire = to_wire(error)
        except ImportError as error:
            logger.exception("a module of the engine cannot be imported")
            error_on_wire = to_wire(BackendError(f"the engine cannot be imported: {error}"))
        except (
            BaseException
        ) as error:  # whatever it was, a panic in a library too: the load failed and the client is told so
            logger.exception("building the model failed")
            error_on_wire = to_wire(
                CheckpointError(f"{load.spec.id} cannot be loaded: {type(error).__name__}: {error}")
            )
        else:
            return
        self._channel.post([encode_frame(LoadFailed(error=error_on_wire))])
        self._end(1)

    def _build(self, load: LoadModel) -> None:
        started = time.monotonic()
        simulated = load.spec.format == "sim"
        build = _builder(load)
        if not simulated:
            check_backend()
            self._memory.begin()
        self._engine = cast(ServingEngine, build(load, self._progress()))
        if load.cores is not None:
            self._set_cores(load.cores)
        if not simulated:
            gc.collect()  # the stock layers that the checkpoint's took the place of, in cycles
            release_unused()
        memory = self._memory.measure(self._engine)
        if load.grant_bytes is not None:
            self._apply_grant(load.grant_bytes)
        info = self._engine.info
        if isinstance(self._engine, SchedulesRows):
            self._schedules = self._engine
            self._capacity = _capacity(self._engine)
        self._on_ready(self._engine)
        ready = Ready(
            static_bytes=memory.static,
            baseline_bytes=self._memory.baseline,
            kv_bytes_per_token=info.kv_bytes_per_token,
            context=info.context,
            width=info.width,
            kernels=info.kernels,
            device=info.device,
            load_s=time.monotonic() - started,
            capacity=() if self._capacity is None else self._capacity.capacity,
        )
        self._channel.post([encode_frame(ready)])

    def _progress(self) -> Callable[[float], None]:
        sent = 0.0

        def report(fraction: float) -> None:
            nonlocal sent
            if fraction >= sent + 0.05:
                sent = fraction
                self._channel.post([encode_frame(LoadProgress(fraction=min(1.0, fraction)))])

        return report

    def _close(self) -> None:
        engine = self._engine
        if engine is not None:
            for request_id in self._live:
                engine.cancel(request_id)
            if engine.busy:
                self._step()
            self._post_events(
                [Finished(request_id=left, reason="cancelled", usage=Usage()) for left in sorted(self._live)]
            )
            engine.close()
        self._channel.post([encode_frame(Closed())])
        self._end(0)

    # --- memory and cores ---

    def _set_grant(self, grant_bytes: int) -> None:
        if self._engine is not None:
            self._engine.set_grant(grant_bytes)
            self._apply_grant(grant_bytes)
            self._asked = None
            self._report_capacity()

    def _deny_growth(self, request_id: int, most_bytes: int) -> None:
        if self._engine is not None:
            self._engine.deny_growth(request_id, most_bytes)
            self._asked = None

    def _shed(self, byte_count: int) -> None:
        if self._engine is None:
            return
        self._engine.shed(byte_count)
        if self._memory.probes:
            trim_heap()
        self._memory.ask_at_once()  # the gateway waits to hear what it brought

    def _ask_growth(self) -> None:
        """Tells what the engine lacks, when that has changed; that it lacks nothing any more, too."""
        growth = None if self._engine is None else self._engine.growth()
        if growth == self._asked:
            return
        if growth is None and self._asked is not None:
            self._channel.post([encode_frame(GrowRequest(request_id=self._asked.request_id, bytes=0))])
        elif growth is not None:
            self._channel.post([encode_frame(growth)])
        self._asked = growth

    def _report_capacity(self) -> None:
        if self._schedules is None:
            return
        capacity = _capacity(self._schedules)
        if capacity != self._capacity:
            self._channel.post([encode_frame(capacity)])
        self._capacity = capacity

    def _report_scheduling(self) -> None:
        """Each second while the engine steps, and once when it has come to rest, though not at once where it rests often."""
        if not self._ran or self._schedules is None:
            return
        now, busy = time.monotonic(), self._schedules.busy
        if now - self._scheduling_sent < (REPORT_S if busy else READ_S) or not self._channel.has_room:
            return
        self._scheduling_sent, self._ran = now, busy
        self._channel.post([encode_frame(self._schedules.scheduling())])

    def _apply_grant(self, grant_bytes: int) -> None:
        if self._memory.probes and self._engine is not None:
            set_limits(self._memory.measure(self._engine).static, grant_bytes)

    def _set_cores(self, cores: int) -> None:
        if isinstance(self._engine, SharesCores):
            self._engine.set_cores(cores)

    def _until_report(self) -> float | None:
        return None if self._engine is None else self._memory.until_due()

    def _report_memory(self) -> None:
        if self._engine is None:
            return
        report = self._memory.due(self._engine, has_room=self._channel.has_room)
        if report is not None:
            self._channel.post([encode_frame(report)])


def _builder(load: LoadModel) -> BuildEngine:
    """The engine module's ``build``. UnsupportedModel where no module serves this task and format yet."""
    spec = load.spec
    module_name = ENGINES.get((spec.task, spec.format))
    if module_name is None:
        raise UnsupportedModel(f"{spec.id}: no engine serves task {spec.task} from a {spec.format} checkpoint yet")
    if spec.format != "sim":
        check_backend()  # before the import, which would only say that a library is missing
    module = importlib.import_module(module_name)
    return cast(BuildEngine, module.build)


def _capacity(engine: SchedulesRows) -> CapacityReport:
    return CapacityReport(capacity=engine.capacity, width=engine.info.width)
