"""The residency's asyncio side: runs the core's effects, feeds it events, and is what routes ask for a lease.

::

    route ── acquire(model) ──> Residency ── handle(event, now) ──> ModelManager (sans-IO, decides)
      ^                            │  ^            │ effects
      └──── Lease, its events      │  └── events ──┼── WorkerFleet ── WorkerHost ══ socket ══ worker process
                                   ├── waiters, leases, timers
                                   └── operators, event feed, learned values

One writer: everything here runs on the event loop's thread, and only ``_handle`` gives the core events.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path

from engines.wire import Priority
from gateway.errors import ModelUnloaded, NotFound, ShuttingDown
from gateway.logs import log_event
from gateway.machine import free_memory, read_machine
from gateway.registry.catalog import Catalog, ResolvedModel
from gateway.registry.load import RegistryError
from gateway.residency import messages as core
from gateway.residency.event_feed import EventFeed, Notice, Transition
from gateway.residency.explain import Explanation
from gateway.residency.learned_store import LearnedStore
from gateway.residency.lease import Lease
from gateway.residency.manager import ModelManager
from gateway.residency.operators import Operators
from gateway.residency.reload import Reload, read_changes
from gateway.residency.scheduling import ResidentScheduling
from gateway.residency.snapshot import ResidencyStatistics, scheduling_of, take_snapshot
from gateway.residency.tokenizer import Tokenizer
from gateway.residency.worker_fleet import WorkerFleet
from gateway.residency.worker_process import WorkerCommand
from gateway.settings import Settings

__all__ = ["Residency"]

_TICK_S = 1.0
_UNHEALTHY_S = 2.0

logger = logging.getLogger("innkeeper.residency")


class Residency:
    """Who is in memory, and for whom. ``start`` once, on the loop that serves; ``acquire`` from then to ``shutdown``.

    ``command`` starts workers in another way than this Python does. ``state`` is the directory where learned values last (None:
    they last as long as this).
    """

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        *,
        command: WorkerCommand | None = None,
        state: Path | None = None,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._command = command
        self._started = catalog.registry.settings  # as the file had them, without what the command line changed
        self.events = EventFeed()  # transitions and notices, for whoever watches
        self._learned = None if state is None else LearnedStore(state, self._warn)
        self._manager = ModelManager(
            core.ManagerSettings(
                budget_bytes=settings.memory.budget_bytes,
                policy=settings.memory.policy,
                unload_timeout_s=settings.workers.unload_timeout_s,
            ),
            learned=None if self._learned is None else self._learned.read(),
            device_free=_device_free(settings),
        )
        self._told: dict[str, tuple[str, str | None]] = {}  # id → resident key and error, as the core was told
        self._ids = count(1)  # waiters and admin verbs
        self._waiters: dict[core.WaiterId, Lease] = {}  # the core settles each
        self._leases: dict[core.LeaseId, Lease] = {}  # the core counts each
        self._operators = Operators(self._handle, self._ids)
        self._reloading = asyncio.Lock()
        self._inbox: deque[core.Event] = deque()
        self._handling = False
        self._timer: asyncio.TimerHandle | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._last_tick = 0.0
        self._shutting_down = False
        self._no_worker_left = asyncio.Event()

    # --- life ---

    async def start(self) -> None:
        """Preloads begin, and the spare. Returns at once."""
        self._loop = asyncio.get_running_loop()
        self._fleet = WorkerFleet(self._settings.workers, self._handle, command=self._command)
        self._tell_registry()
        self._tick()
        self._fleet.spares.refill()

    async def shutdown(self, grace_s: float | None = None) -> None:
        """New callers get ShuttingDown, queued ones too; leases run until the core ends them, near the grace's end.

        Returns when every worker is gone, within the grace (``server.shutdown_grace_s`` where None). Called once more it
        shortens the grace; cancelled, it kills what is left before it goes.
        """
        self._shutting_down = True
        self._handle(core.Shutdown(self._settings.server.shutdown_grace_s if grace_s is None else grace_s))
        try:
            await self._no_worker_left.wait()
            await self._fleet.tokenizer.finish()
            await self._fleet.close()
            if self._learned is not None:
                await self._learned.close()
        finally:
            self._fleet.kill_all()
            self.events.close()
            for timer in (self._timer, self._ticker):
                if timer is not None:
                    timer.cancel()

    @property
    def is_shutting_down(self) -> bool:
        return self._shutting_down

    def healthy(self, now: float) -> bool:
        """Whether the manager ticked within the last two seconds; ``now`` in the event loop's time."""
        return now - self._last_tick <= _UNHEALTHY_S

    def ready(self) -> str | None:
        """Why a request for a healthy model could not be served now; None when it could."""
        if self._shutting_down:
            return "shutting down"
        if self._manager.queue_is_full:
            return "the queue is full"
        failure = self._fleet.spares.failure
        return None if failure is None else f"workers cannot start: the last one {failure}"

    @property
    def tokenizer(self) -> Tokenizer:
        """Token ids of any model, loaded or not."""
        return self._fleet.tokenizer

    def statistics(self) -> ResidencyStatistics:
        """A snapshot of now."""
        return take_snapshot(self._manager, self._fleet, self._loop.time())

    def scheduling(self, model: str) -> ResidentScheduling | None:
        """Of one id, loaded or not; None where there is nothing to tell: it decodes no rows, or cannot be used."""
        return scheduling_of(model, self._manager, self._fleet, self._loop.time())

    def check_integrity(self) -> None:
        """AssertionError when an invariant of the residency does not hold. For idle moments and tests."""
        self._manager.check_integrity()
        held = {record.id for record in self._manager.statistics(self._loop.time()).leases}
        assert held == self._leases.keys(), "the core and the shell count other leases"

    # --- callers ---

    @asynccontextmanager
    async def acquire(
        self, model: ResolvedModel, *, client: str, route: str, priority: Priority = "normal"
    ) -> AsyncIterator[Lease]:
        """Waits until the model is loaded and leases it for the length of the block. GatewayError when it cannot be had.

        A cancel, at any point, gives back what was granted or the place in the queue.
        """
        if self._shutting_down:
            raise ShuttingDown("the server is shutting down")
        self.note_files(model)
        lease = Lease(next(self._ids), model.id, self)
        try:
            self._ask(lease, client, route, priority)
            await lease.granted()
            yield lease
        finally:
            lease.release()

    def note_files(self, model: ResolvedModel) -> None:
        """The model as its files are now. A resident of other files leaves; one that cannot be used is shown as failed."""
        if self._told.get(model.id) != _told(model):
            self._tell_registry()

    def keep_alive(self, model: ResolvedModel, seconds: float) -> None:
        """How long it stays after its last lease, or its TTL if that is longer; 0: it goes then; negative: it stays.

        Holds for the generation that is loaded or being loaded; nothing where there is none.
        """
        self._handle(core.KeepAlive(model.id, seconds))

    def _ask(self, lease: Lease, client: str, route: str, priority: Priority) -> None:
        now = self._loop.time()
        grant = self._manager.acquire_nowait(lease.waiter, lease.model, client, route, now, priority)
        self._waiters[lease.waiter] = lease
        if grant is not None:
            self._grant(grant)
        else:
            self._handle(core.Request(lease.waiter, lease.model, client, route, priority))

    def lease_admitted(self, lease: Lease) -> None:
        self._handle(core.LeaseAdmitted(lease.id))

    def lease_released(self, lease: Lease) -> None:
        self._leases.pop(lease.id, None)
        self._handle(core.LeaseReleased(lease.id))

    def waiter_cancelled(self, lease: Lease) -> None:
        self._waiters.pop(lease.waiter, None)
        self._handle(core.CancelWaiter(lease.waiter))

    # --- operators ---

    async def load(self, model: str) -> core.AdminAnswer:
        """Returns when it is loaded. A caller that leaves does not cancel it."""
        self._look_at_files(model)
        return await self._operators.load(model)

    async def unload(self, model: str, mode: core.UnloadMode = "drain", deadline_s: float = 30.0) -> core.AdminAnswer:
        """Returns when its bytes are released. A caller that leaves does not cancel it."""
        return await self._operators.unload(model, mode, deadline_s)

    async def pin(self, model: str) -> core.AdminAnswer:
        """Never evicted, unloaded for being idle, or drained for another, until ``unpin`` or its removal. Loads nothing."""
        return await self._operators.pin(model)

    async def unpin(self, model: str) -> core.AdminAnswer:
        """Takes a pin away, the registry's too."""
        return await self._operators.unpin(model)

    def plan(self, model: str) -> Explanation:
        """What a request for it would lead to now; nothing is done. ModelNotFound."""
        self._look_at_files(model)
        return self._manager.plan(model, self._loop.time())

    def cancel_lease(self, lease_id: core.LeaseId) -> str:
        """Cancels its requests in the worker, and later ones are refused; it ends when the worker has said so. Its model's id.

        NotFound when there is no such lease (any more).
        """
        lease = self._leases.get(lease_id)
        if lease is None:
            raise NotFound(f"there is no lease {lease_id!r}; GET /admin/leases lists those there are")
        lease.cancel_with(ModelUnloaded("an operator cancelled this request", retry=False))
        return lease.model

    async def reload(self) -> Reload:
        """Reads the registry file again. RegistryError when it is not valid: then the old one stays. Either is logged."""
        async with self._reloading:
            try:
                successor, changes = await read_changes(
                    self._catalog, self._started, self._settings.memory.budget_bytes
                )
            except RegistryError as error:
                log_event(logger, logging.WARNING, "registry not reloaded", error=str(error))
                raise
            self._catalog.replace(successor)
            self._tell_registry()
        told = {name: ",".join(ids) or None for name, ids in asdict(changes).items()}
        log_event(logger, logging.INFO, "registry reloaded", **told)
        return changes

    # --- the core ---

    def _handle(self, event: core.Event) -> None:
        """Gives the core an event and runs what it answers. From within an effect: after this effect's list is through."""
        self._inbox.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._inbox:
                for effect in self._manager.handle(self._inbox.popleft(), self._loop.time()):
                    self._run(effect)
        finally:
            self._handling = False

    def _run(self, effect: core.Effect) -> None:
        match effect:
            case core.GrantLease():
                self._grant(effect)
            case core.FailWaiter(waiter=waiter, error=error):
                if (lease := self._waiters.pop(waiter, None)) is not None:
                    lease.refuse(error)
            case core.RequeueLease(lease=lease_id, waiter=waiter):
                self._requeue(lease_id, waiter)
            case core.EndLease(lease=lease_id, error=error):
                if (lease := self._leases.pop(lease_id, None)) is not None:
                    lease.refuse(error)
            case core.CancelLease(lease=lease_id, error=error):
                if (lease := self._leases.get(lease_id)) is not None:
                    lease.cancel_with(error)
            case core.AnswerAdmin(admin=admin, answer=answer):
                self._operators.answer(admin, answer)
            case core.SetTimer(at=at):
                self._set_timer(at)
            case core.EmitTransition():
                self._publish(effect)
            case core.PersistLearned(content_key=content_key, value=value):
                if self._learned is not None:
                    self._learned.put(content_key, value)
            case core.ShutdownComplete():
                self._no_worker_left.set()
            case _:
                self._fleet.run(effect)

    def _grant(self, grant: core.GrantLease) -> None:
        lease = self._waiters.pop(grant.waiter, None)
        host = self._fleet.host(grant.key, grant.generation)
        if lease is None or host is None:
            self._handle(core.CancelWaiter(grant.waiter))
            return
        self._leases[grant.lease] = lease
        lease.hold(grant, host)

    def _requeue(self, lease_id: core.LeaseId, waiter: core.WaiterId) -> None:
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            self._handle(core.CancelWaiter(waiter))
            return
        self._waiters[waiter] = lease
        lease.requeue()

    def _look_at_files(self, name: str) -> None:
        """Tells the core of a model's file that was repaired, replaced or lost since."""
        known = next((model for model in self._catalog.models if model.id == name), None)
        if known is not None:
            self.note_files(known)

    def _tell_registry(self) -> None:
        models = self._catalog.models
        if any(model.task == "text" and model.spec.format != "sim" for model in models):
            self._fleet.spares.raise_limit(self._settings.workers.spare)  # without such a model nothing could use one
        self._told = {model.id: _told(model) for model in models}
        self._handle(core.RegistryChanged(tuple(core.ModelInfo.of(model) for model in models)))

    def _publish(self, effect: core.EmitTransition) -> None:
        transition = Transition(
            at=time.time() - (self._loop.time() - effect.at),
            model=effect.model,
            from_state=effect.from_state,
            to_state=effect.to_state,
            cause=effect.cause,
            charged_bytes=effect.charged_bytes,
        )
        log_event(
            logger,
            logging.INFO,
            "model changed" if transition.from_state != transition.to_state else "model stays",
            model=transition.model,
            **{"from": transition.from_state, "to": transition.to_state},
            cause=transition.cause,
            charged_bytes=transition.charged_bytes,
        )
        self.events.publish(transition)

    def _warn(self, message: str) -> None:
        log_event(logger, logging.WARNING, "state directory", problem=message)
        self.events.publish(Notice(time.time(), message))

    def _tick(self) -> None:
        self._last_tick = self._loop.time()
        self._ticker = self._loop.call_later(_TICK_S, self._tick)
        self._handle(core.Tick())

    def _set_timer(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at is None else self._loop.call_at(at, self._handle, core.Tick())


def _device_free(settings: Settings) -> Callable[[], int | None]:
    """Bytes really free on the device; None where nothing but MLX knows (GPUs), and in a rehearsal."""
    if settings.memory.device_bytes is not None or read_machine().device != "cpu":
        return lambda: None
    return free_memory


def _told(model: ResolvedModel) -> tuple[str, str | None]:
    return model.resident_key, None if model.error is None else model.error.message
