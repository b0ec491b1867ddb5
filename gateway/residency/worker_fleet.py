"""All workers of the gateway: runs the core's effects on them and tells it what they say."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from engines.wire import (
    CapacityReport,
    GrowRequest,
    Hello,
    LoadFailed,
    LoadModel,
    LoadProgress,
    MemoryReport,
    ModelSpec,
    Ready,
)
from gateway.errors import ModelLoadFailed, from_wire
from gateway.machine import usable_cores
from gateway.residency import messages as core
from gateway.residency.process_memory import process_bytes, resident_bytes
from gateway.residency.spare import SparePool
from gateway.residency.tokenizer import Tokenizer
from gateway.residency.worker_host import WorkerHost, WorkerMessage
from gateway.residency.worker_process import WorkerCommand, WorkerExit
from gateway.settings import WorkerSettings

__all__ = ["ProcessStatistics", "WorkerEffect", "WorkerFleet"]

WorkerEffect = (
    core.StartWorker
    | core.SendClose
    | core.KillWorker
    | core.ObserveRelease
    | core.SetGrant
    | core.DenyGrowth
    | core.Shed
)

logger = logging.getLogger("innkeeper.residency")


@dataclass(frozen=True)
class ProcessStatistics:
    """One worker process. ``model`` is None for a spare and the tokenizer; ``device_bytes`` is what it measured last."""

    pid: int
    model: str | None
    generation: int | None
    rss_bytes: int
    device_bytes: int
    kernels: str | None
    load_s: float | None


class WorkerFleet:
    """``run`` takes one effect; ``emit`` is given the events that follow, also from within ``run``.

    One writer: the event loop's thread.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        emit: Callable[[core.Event], None],
        *,
        command: WorkerCommand | None = None,
        cores: int | None = None,
    ) -> None:
        self._emit = emit
        self._settings = settings
        self._cores = cores or usable_cores()
        self._command = command or WorkerCommand(threads=self._cores)
        self._members: dict[tuple[str, int], _Member] = {}
        self._aborts: Counter[str] = Counter()  # deaths by SIGABRT of simulated models, by resident key
        self._all_gone = asyncio.Event()
        self._closed = False
        self.spares = SparePool(
            self._command,
            limit=0,  # raised when a model comes that could use one
            cancel_timeout_s=settings.cancel_timeout_s,
            on_change=self._overhead_changed,
        )
        self.tokenizer = Tokenizer(
            WorkerCommand(self._command.python, threads=1, module="engines.tokenizer_worker"), self._overhead_changed
        )

    def host(self, key: str, generation: int) -> WorkerHost | None:
        """The worker of this generation, from its start until its group is gone."""
        member = self._members.get((key, generation))
        return None if member is None else member.host

    def statistics(self) -> tuple[ProcessStatistics, ...]:
        """Every process: those of models, spares, the tokenizer."""
        residents = tuple(member.statistics() for member in self._members.values())
        others = (*(host.pid for host in self.spares.hosts), *self.tokenizer.pids)
        return residents + tuple(
            ProcessStatistics(pid, None, None, resident_bytes(pid), 0, None, None) for pid in others
        )

    def run(self, effect: WorkerEffect) -> None:
        """Begins it. An effect for a generation that is gone does nothing."""
        if isinstance(effect, core.StartWorker):
            self._start(effect)
            return
        member = self._members.get((effect.key, effect.generation))
        if member is None:
            return
        match effect:
            case core.SendClose():
                member.host.close()
            case core.KillWorker():
                member.host.kill()
            case core.SetGrant(grant_bytes=grant_bytes):
                member.host.set_grant(grant_bytes)
            case core.DenyGrowth(request=request, most_bytes=most_bytes):
                member.host.deny_growth(request, most_bytes)
            case core.Shed(bytes=byte_count):
                member.host.shed(byte_count)
            case core.ObserveRelease():
                pass  # only a simulated release lasts longer than its process, and its timer runs already

    async def close(self) -> None:
        """Kills every worker and spare that is left, and returns when their process groups are gone."""
        self.kill_all()
        await self.spares.close()
        await self.tokenizer.close()
        while self._members:
            self._all_gone.clear()
            await self._all_gone.wait()

    def kill_all(self) -> None:
        """Kills them without waiting."""
        self._closed = True
        for member in self._members.values():
            member.host.kill("was killed: the gateway is shutting down")
        self.spares.kill_all()
        self.tokenizer.kill()

    # --- start ---

    def _start(self, effect: core.StartWorker) -> None:
        key = (effect.key, effect.generation)
        spec = self._with_faults_left(effect.key, effect.spec)
        self.spares.pause()
        host = self.spares.take() if spec.format != "sim" and spec.task == "text" else None
        if host is None:
            command = replace(self._command, arguments=(*self._command.arguments, "--bare"))
            try:
                host = WorkerHost(
                    command if spec.format == "sim" else self._command,
                    None,
                    cancel_timeout_s=self._settings.cancel_timeout_s,
                )
            except OSError as error:
                why = f"{effect.model} cannot be loaded: its worker cannot be started ({error})"
                self._emit(core.LoadFailed(effect.key, effect.generation, ModelLoadFailed(why)))
                self._emit(core.WorkerExited(effect.key, effect.generation, detail="could not be started"))
                self._refill_spares()
                return
        member = _Member(self, effect, spec, host)
        host.listener = member
        self._members[key] = member
        if host.hello is not None:
            self._emit(core.WorkerStarted(effect.key, effect.generation, host.pid))
        self._share_cores()
        host.load(LoadModel(spec=spec, grant_bytes=effect.grant_bytes, cores=member.cores))

    def _with_faults_left(self, key: str, spec: ModelSpec) -> ModelSpec:
        """A simulated model that has aborted ``abort_times`` does not do so again."""
        simulate = spec.simulate
        if simulate is None or simulate.abort_times is None or self._aborts[key] < simulate.abort_times:
            return spec
        return msgspec.structs.replace(spec, simulate=msgspec.structs.replace(simulate, abort_after_tokens=None))

    def _share_cores(self) -> None:
        """Equal shares among the workers that compute; each hears of it when its own share changed."""
        computing = [member for member in self._members.values() if member.spec.format != "sim"]
        share = max(1, self._cores // max(1, len(computing)))
        for member in computing:
            if member.cores not in (None, share):
                member.host.set_cores(share)
            member.cores = share

    # --- what members say ---

    def said(self, member: _Member, message: WorkerMessage) -> None:
        key, generation = member.key, member.generation
        match message:
            case Hello(pid=pid):
                self._emit(core.WorkerStarted(key, generation, pid))
            case LoadProgress(fraction=fraction):
                self._emit(core.LoadProgress(key, generation, fraction))
            case Ready():
                member.loading = False
                self._emit(
                    core.WorkerReady(
                        key,
                        generation,
                        static_bytes=message.static_bytes,
                        baseline_bytes=message.baseline_bytes,
                        kv_bytes_per_token=message.kv_bytes_per_token,
                        context=message.context,
                        width=message.width,
                    )
                )
                self._refill_spares()
            case LoadFailed(error=error):
                member.loading = False
                self._emit(core.LoadFailed(key, generation, from_wire(error)))
                self._refill_spares()
            case MemoryReport():
                self._emit(
                    core.MemoryReport(
                        key,
                        generation,
                        static=message.static,
                        kv=message.kv,
                        prompt_cache=message.prompt_cache,
                        mlx_cache=message.mlx_cache,
                        peak=message.peak,
                    )
                )
            case GrowRequest(bytes=byte_count, request_id=request_id):
                self._emit(core.GrowRequest(key, generation, byte_count, request_id))
            case CapacityReport(width=width):
                self._emit(core.WidthChanged(key, generation, width))
            case _:
                pass  # SchedulingReport: the host keeps it; Closed: the exit that follows is what counts

    def exited(self, member: _Member, exit: WorkerExit) -> None:
        key, generation = member.key, member.generation
        del self._members[key, generation]
        if exit.status != 0:
            logger.warning("worker %d of %s %s", member.host.pid, member.model, exit.describe())
        simulate = member.spec.simulate
        held = 0
        if simulate is not None and exit.signal == signal.SIGABRT:
            self._aborts[key] += 1
        if simulate is not None and simulate.hold_memory_s > 0 and member.host.ready is not None and not self._closed:
            held = simulate.weights_bytes
            asyncio.get_running_loop().call_later(
                simulate.hold_memory_s, self._emit, core.ReleaseObserved(key, generation)
            )
        self._emit(core.WorkerExited(key, generation, detail=exit.describe(), held_bytes=held))
        self._share_cores()
        self._refill_spares()
        if not self._members:
            self._all_gone.set()

    def _refill_spares(self) -> None:
        if not any(member.loading for member in self._members.values()):
            self.spares.refill()

    def _overhead_changed(self) -> None:
        spares = sum(process_bytes(host.pid) for host in self.spares.hosts)
        tokenizer = sum(map(process_bytes, self.tokenizer.pids))
        self._emit(core.OverheadMeasured(overhead_bytes=spares, yielding_bytes=tokenizer))


class _Member:
    """One resident's worker: its host, and whose it is."""

    def __init__(self, fleet: WorkerFleet, start: core.StartWorker, spec: ModelSpec, host: WorkerHost) -> None:
        self._fleet = fleet
        self.key = start.key
        self.generation = start.generation
        self.model = start.model
        self.spec = spec
        self.host = host
        self.loading = True
        self.cores: int | None = None  # None: it computes nothing, or has not been told

    def worker_said(self, host: WorkerHost, message: WorkerMessage) -> None:
        self._fleet.said(self, message)

    def worker_exited(self, host: WorkerHost, exit: WorkerExit) -> None:
        self._fleet.exited(self, exit)

    def statistics(self) -> ProcessStatistics:
        memory, ready = self.host.memory, self.host.ready
        measured = 0 if memory is None else memory.static + memory.kv + memory.prompt_cache + memory.mlx_cache
        return ProcessStatistics(
            pid=self.host.pid,
            model=self.model,
            generation=self.generation,
            rss_bytes=resident_bytes(self.host.pid),
            device_bytes=measured,
            kernels=None if ready is None else ready.kernels,
            load_s=None if ready is None else ready.load_s,
        )
