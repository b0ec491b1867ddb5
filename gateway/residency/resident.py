"""The state machine of one resident: what is loaded from one content with one set of load parameters.

Verbs that change the state, and the rows of the table (``states.py``) they are:

==================  ======================================================  ==========================================
verb                leads                                                   asked for by
==================  ======================================================  ==========================================
``begin_load``      UNLOADED, FAILED → LOADING                              request, admin load, preload
``loaded``          LOADING → LOADED                                        load done
``load_failed``     LOADING → UNLOADING(FAILED)                             load failed, no progress, worker exited
``abort``           LOADING → UNLOADING(UNLOADED)                           abandon, evict, unload, reload, removal, shutdown
``drain``           LOADED → DRAINING, or UNLOADING without a lease         unload, reload, removal, shutdown
``unload``          LOADED → UNLOADING                                      evict, idle timeout
``make_way``        LOADED, DRAINING → UNLOADING                            evict, last lease released
``hold``            LOADED → DRAINING(fairness), or UNLOADING not yet sent  fairness drain
``resume``          DRAINING, UNLOADING not yet sent → LOADED               intent cancelled, pin, deadline
``last_release``    DRAINING → UNLOADING                                    last lease released
``kill_drain``      DRAINING → UNLOADING                                    deadline of abort, force, shutdown
``died``            LOADED, DRAINING → FAILED or UNLOADED                   worker exited
``gone``            UNLOADING → its target                                  release observed, worker exited, timed out
``clear_failure``   FAILED → UNLOADED                                       unload, reload, removal, shutdown
==================  ======================================================  ==========================================

Leases and joiners are counted here; who they are and what they are told is ``front_desk.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engines.footprint import Footprint
from gateway.errors import GatewayError
from gateway.residency.backoff import Backoff
from gateway.residency.callers import AdminCaller, LeaseRecord, UnloadCaller, Waiter
from gateway.residency.effects import KillWorker, SendClose, StartWorker
from gateway.residency.generation import Generation
from gateway.residency.queue import Claim
from gateway.residency.service_rate import ServiceRate
from gateway.residency.shared_policy import SharedPolicy
from gateway.residency.sizes import Sizes
from gateway.residency.states import Cause, State, Trigger, check
from gateway.residency.timers import Timer, TimerKind
from gateway.residency.values import AdminId, LeaseId, ModelInfo, WaiterId

if TYPE_CHECKING:
    from gateway.residency.house import House

__all__ = ["ResidencyManager"]


class ResidencyManager:
    """One resident key. Only the parts of the core touch it; others read the manager's ``statistics()``."""

    def __init__(self, key: str, house: House, infos: Sequence[ModelInfo]) -> None:
        self.key = key
        self.house = house
        self.policy = SharedPolicy.of(infos)  # of its ids, in the registry's order; the last known once it has none
        self.orphaned: Cause | None = (
            None  # RELOAD or REMOVED: no id has this key any more, it will not be loaded again
        )
        self.state = State.UNLOADED
        self.cause: Cause | None = None  # DRAINING and UNLOADING only
        self.target = State.UNLOADED  # where UNLOADING leads: UNLOADED or FAILED
        self.sent = False  # UNLOADING only: the teardown is sent, there is no way back
        self.claim: Claim | None = None  # DRAINING and UNLOADING: for whom it was drained or evicted
        self.aborting = False  # DRAINING: its leases were cancelled, and the deadline kills
        self.solicited = False  # LOADING for an operator or a preload: not abandoned, but it yields its bytes
        self.current = Generation(house.generations.get(key, 0))
        self.leases: dict[LeaseId, LeaseRecord] = {}  # LOADED and DRAINING only
        self.unadmitted = 0  # of the leases, those whose request has not begun
        self.joiners: dict[WaiterId, Waiter] = {}  # LOADING only
        self.admin_loads: list[AdminCaller] = []  # LOADING only
        self.unloads: dict[AdminId, UnloadCaller] = {}  # LOADING (an unload intent), DRAINING, UNLOADING
        self.backoff = Backoff()
        self.immune_until = -math.inf  # no fairness drain before
        self.last_error: GatewayError | None = None
        self.last_used = 0.0
        self.idle_since: float | None = None  # LOADED without leases only
        self.width: int | None = None  # of the last load
        self.load_s: float | None = None  # how long the last load took
        self.service = ServiceRate()  # over all generations
        self.loads = 0
        self.evictions = 0

    # --- what it is

    @property
    def infos(self) -> tuple[ModelInfo, ...]:
        return self.policy.infos

    @property
    def ids(self) -> list[str]:
        """The registry ids that have this key now."""
        return [] if self.orphaned else [info.id for info in self.infos]

    @property
    def name(self) -> str:
        """The id it is shown under."""
        return self.infos[0].id

    @property
    def simulated(self) -> bool:
        return self.infos[0].simulated

    @property
    def generation(self) -> int:
        return self.current.number

    @property
    def pinned(self) -> bool:
        return bool(self.house.pinned_ids(self))

    @property
    def footprint(self) -> Footprint:
        """The header's, as loads have corrected it."""
        info = self.infos[0]
        return self.house.learned.footprint(info.content_key, info.footprint)

    @property
    def sizes(self) -> Sizes:
        """What its next load needs."""
        info = self.infos[0]
        return Sizes.of(self.footprint, info.kv_grant_bytes, 0 if info.simulated else self.house.baseline_bytes)

    @property
    def charge(self) -> int:
        """Bytes that this generation holds."""
        return self.house.budget.of(self.key, self.generation) or 0

    @property
    def load_rest_s(self) -> float:
        """How long until it answers, as far as its last load tells; 0 where it does or nothing is known. Waits before the load
        are not in it.
        """
        if self.load_s is None or self.state in (State.LOADED, State.DRAINING):
            return 0.0
        elapsed = self.house.now - self.current.began if self.state is State.LOADING else 0.0
        return max(0.0, self.load_s - elapsed)

    @property
    def in_backoff(self) -> bool:
        return self.state is State.FAILED and self.backoff.rest(self.house.now) > 0

    @property
    def yields(self) -> bool:
        """LOADING for no caller: it gives up its bytes when a caller of another needs them."""
        return self.state is State.LOADING and not self.joiners and not self.pinned

    @property
    def abandoned(self) -> bool:
        """LOADING for callers who have all left; pinned loads and those of operators and preloads go on."""
        return self.yields and not self.solicited

    @property
    def unwanted(self) -> bool:
        """LOADING, an unload waits for its end, and whom it was to serve before has left."""
        return self.state is State.LOADING and bool(self.unloads) and not self.joiners and not self.admin_loads

    @property
    def evictable(self) -> bool:
        return self.state is State.LOADED and not self.leases and not self.pinned

    # --- loading

    def begin_load(self, trigger: Trigger, grant: int, cause: str) -> None:
        """Reserves the bytes and starts a worker. ValueError when they are not there."""
        house, sizes, info = self.house, self.sizes, self.infos[0]
        baseline = 0 if info.simulated else house.baseline_bytes
        number = house.generations[self.key] = house.generations.get(self.key, 0) + 1
        self.current = Generation(number, house.now, grant, baseline, sizes.static - baseline, loaded_grant=grant)
        house.budget.charge(self.key, number, self.name, self.current.charge)
        house.workers.add((self.key, number))
        self.last_used = house.now
        self._go(trigger, State.LOADING, label=cause)
        house.timers.set(Timer(TimerKind.LOAD, self.key), house.now + self.policy.load_timeout_s)
        house.emit(StartWorker(self.key, number, info.id, info.spec, grant, self.charge))

    def progressed(self, fraction: float) -> None:
        """The load lives: its timeout counts from here."""
        self.current.progress = fraction
        self.house.timers.set(Timer(TimerKind.LOAD, self.key), self.house.now + self.policy.load_timeout_s)

    def watch_abandon(self) -> None:
        """Starts or stops the grace, as callers and pins come and go."""
        timer = Timer(TimerKind.ABANDON, self.key)
        if not self.abandoned:
            self.house.timers.cancel(timer)
        elif self.house.timers.at(timer) is None:
            self.house.timers.set(timer, self.house.now + self.policy.abandon_grace_s)

    def loaded(self) -> None:
        """The model answers. Joiners and operators have been taken out before."""
        self._end_load()
        self.loads += 1
        self.load_s = self.house.now - self.current.began
        self.last_error = None
        self.last_used = self.house.now
        self._go(Trigger.LOAD_DONE, State.LOADED)

    def load_failed(self, trigger: Trigger, error: GatewayError) -> None:
        """It could not be built in time or at all; passes through UNLOADING."""
        self._end_load()
        self.last_error = error
        self.backoff.record(self.house.now, served=False)
        self._go(trigger, State.UNLOADING, Cause.LOAD_FAILED, target=State.FAILED)
        self.kill()

    def abort(self, trigger: Trigger, cause: Cause, claim: Claim | None = None) -> None:
        """Nobody wants the load any more; there is no state to persist."""
        self._end_load()
        if cause is Cause.EVICTED:
            self.evictions += 1
        self._go(trigger, State.UNLOADING, cause)
        self.claim = claim
        self.kill()

    def _end_load(self) -> None:
        assert not self.joiners and not self.admin_loads, "callers of a load are told before it ends"
        for kind in (TimerKind.LOAD, TimerKind.ABANDON):
            self.house.timers.cancel(Timer(kind, self.key))
        self.solicited = False

    # --- leaving LOADED, and coming back

    def unload(self, trigger: Trigger, cause: Cause, claim: Claim | None = None) -> None:
        """LOADED and idle: tears it down."""
        if cause is Cause.EVICTED:
            self.evictions += 1
        self._go(trigger, State.UNLOADING, cause)
        self.claim = claim
        self.send_teardown()

    def make_way(self, claim: Claim) -> None:
        """LOADED or DRAINING, its callers queue again, and nothing of theirs had begun: it goes without a word to them."""
        if self.state is State.DRAINING:
            self._go(Trigger.LAST_LEASE_RELEASED, State.UNLOADING, self.cause)
        else:
            self.evictions += 1
            self._go(Trigger.EVICT, State.UNLOADING, Cause.EVICTED)
        self.claim = claim
        self.kill()

    def drain(self, trigger: Trigger, cause: Cause) -> None:
        """No new leases; it unloads when the last one is released."""
        if not self.leases:
            self.unload(trigger, cause)
            return
        self._go(trigger, State.DRAINING, cause)
        self._watch_drain()

    def hold(self, claim: Claim) -> None:
        """A victim of a fairness drain; the intent has the deadline."""
        self._go(Trigger.FAIRNESS, State.DRAINING if self.leases else State.UNLOADING, Cause.FAIRNESS)
        self.claim = claim

    def resume(self, trigger: Trigger) -> None:
        """Back to LOADED; who queued is granted by the planner."""
        assert not self.sent, "a teardown that was sent cannot be taken back"
        assert not self.orphaned, "no id has this key any more"
        self._go(trigger, State.LOADED)

    def recause(self, cause: Cause) -> None:
        """DRAINING or UNLOADING for a reason that cannot be taken back for the old rival's sake."""
        if self.state is State.UNLOADING:
            if self.target is State.FAILED and (cause is Cause.ADMIN or self.orphaned):
                self.target = State.UNLOADED
                self.backoff.clear()
            if not self.sent:
                self.cause = cause
                self.send_teardown()
            return
        if cause is not self.cause and self.cause is not Cause.SHUTDOWN:
            self.cause = cause
            self.house.announce(self, self.state, cause.value)
        self._watch_drain()

    def last_release(self) -> None:
        """DRAINING, and the last lease is gone."""
        claim, fairness = self.claim, self.cause is Cause.FAIRNESS
        self._go(Trigger.LAST_LEASE_RELEASED, State.UNLOADING, self.cause)
        self.claim = claim
        if not fairness:
            self.send_teardown()

    def kill_drain(self, trigger: Trigger) -> None:
        """DRAINING has lasted long enough; its leases have been ended before."""
        self._go(trigger, State.UNLOADING, self.cause)
        self.kill()

    def _watch_drain(self) -> None:
        """A deadline for the causes that have one of their own (fairness: the intent's; admin: each caller's)."""
        timer = Timer(TimerKind.DRAIN, self.key)
        if self.cause is Cause.SHUTDOWN:
            self.house.timers.set(timer, self.house.drain_until)
        elif self.cause in (Cause.RELOAD, Cause.REMOVED):
            self.house.timers.set(timer, self.house.now + self.policy.drain_timeout_s)
        else:
            self.house.timers.cancel(timer)

    def still_draining(self) -> None:
        """A drain without a deadline has lasted another ``drain_timeout_s``: tells whoever watches."""
        assert self.cause is not None
        self.house.announce(self, self.state, self.cause.value)
        self._watch_drain()

    # --- the end of a worker

    def send_teardown(self) -> None:
        """UNLOADING: from here there is no way back."""
        assert self.state is State.UNLOADING and not self.sent
        self.sent = True
        self.watch_unload()
        self.house.emit(SendClose(self.key, self.generation))

    def kill(self) -> None:
        """UNLOADING: the process group goes at once."""
        self.lose_worker()
        if (self.key, self.generation) in self.house.workers:
            self.house.emit(KillWorker(self.key, self.generation))

    def lose_worker(self) -> None:
        """UNLOADING: its worker is gone or will be; only its bytes are waited for."""
        assert self.state is State.UNLOADING
        self.sent = True
        self.watch_unload()

    def watch_unload(self) -> None:
        """The unload timeout, which a shutdown shortens; another try does not extend it."""
        timer = Timer(TimerKind.UNLOAD, self.key)
        at = min(self.house.now + self.house.settings.unload_timeout_s, self.house.unload_until)
        before = self.house.timers.at(timer)
        self.house.timers.set(timer, at if before is None else min(at, before))

    def gone(self, trigger: Trigger) -> None:
        """UNLOADING has ended: the bytes are credited, or marked unreleased."""
        failed = self.target is State.FAILED and self.last_error is not None
        self._go(trigger, self.target, label=self.last_error.code if failed and self.last_error else None)

    def died(self, to: State, error: GatewayError) -> None:
        """The worker of a LOADED or DRAINING resident is gone; its leases have been dealt with before."""
        self.last_error = error
        self._go(Trigger.WORKER_EXITED, to, label=error.code)

    def clear_failure(self, trigger: Trigger) -> None:
        """FAILED is forgotten."""
        self.backoff.clear()
        self._go(trigger, State.UNLOADED)

    # --- idle clock

    @property
    def stay_s(self) -> float | None:
        """How long it stays after its last lease; None: until somebody needs its bytes, or for ever if pinned."""
        keep = self.current.keep_alive_s
        if self.pinned or (keep is not None and keep < 0):
            return None
        ttl = self.policy.ttl_s(self.current.used)
        return ttl if keep is None else max(ttl, keep) if keep else 0.0

    @property
    def idle_deadline(self) -> float | None:
        """When it is unloaded for being idle; None: not idle, pinned, or never."""
        stay = None if self.idle_since is None else self.stay_s
        return None if self.idle_since is None or stay is None else self.idle_since + stay

    def watch_idle(self) -> None:
        """Sets the idle timer, or takes it away."""
        timer, deadline = Timer(TimerKind.IDLE, self.key), self.idle_deadline
        if deadline is None:
            self.house.timers.cancel(timer)
        else:
            self.house.timers.set(timer, deadline)

    # --- leases

    def add_lease(self, lease: LeaseRecord) -> None:
        """LOADED: one more. O(1), since every request on a resident model comes here."""
        self.leases[lease.id] = lease
        self.unadmitted += 1
        self.service.begin(self.house.now)
        self.current.used.add(lease.waiter.model)
        self.idle_since = None
        self.house.timers.cancel(Timer(TimerKind.IDLE, self.key))

    def drop_lease(self, lease: LeaseRecord) -> None:
        """One less; what its end leads to is the caller's business."""
        del self.leases[lease.id]
        self.unadmitted -= not lease.admitted
        self.service.end(self.house.now, served=lease.admitted)
        self.last_used = self.house.now
        if not self.leases:
            self.current.growth = None
            if self.state is State.LOADED:
                self.idle_since = self.house.now
                self.watch_idle()

    def recharge(self) -> None:
        """The charge follows what was measured and granted."""
        self.house.budget.adjust(self.key, self.generation, self.current.charge)

    # ---

    def _go(
        self,
        trigger: Trigger,
        to: State,
        cause: Cause | None = None,
        *,
        target: State = State.UNLOADED,
        label: str | None = None,
    ) -> None:
        """The one place where the state changes: holds it against the table, and resets what belongs to a state."""
        check(self.state, trigger, to)
        was, self.state, self.cause, self.target = self.state, to, cause, target
        self.sent = self.aborting = False
        self.claim = None
        for kind in (TimerKind.DRAIN, TimerKind.UNLOAD):
            self.house.timers.cancel(Timer(kind, self.key))
        if to is not State.DRAINING and to is not State.LOADED:
            assert not self.leases, "a leased resident is never unloaded"
            self.current.growth = None
        self.idle_since = self.house.now if to is State.LOADED and not self.leases else None
        self.watch_idle()
        self.house.announce(self, was, label or (cause.value if cause else trigger.value))
