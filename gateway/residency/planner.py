"""What the queue leads to: run at the end of every step, until nothing changes.

1. An overrun is mended first; while there is one, nothing is granted.
2. Who queued for a resident that is LOADED now is granted; who queued for one LOADING without an unload intent joins.
3. Growth of running requests (``memory.py``).
4. Entries that can never be loaded are refused, those whose key is on its way out are passed over.
5. A load nobody waits for is aborted if an unload waits for it, or anybody needs the slot or the bytes.
6. The head is planned (``plan.py``): start, wait, evict, or drain for fairness.
7. A later entry overtakes if the slot is free and it fits without eviction and without earmarked bytes.

The load slot is one. It is held only while LOADING, and only a start needs it; eviction for a load waits until it is free, so
that no model stops serving earlier than it must.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.residency import fairness
from gateway.residency.admin_desk import AdminDesk
from gateway.residency.callers import in_turn
from gateway.residency.front_desk import FrontDesk
from gateway.residency.house import House
from gateway.residency.memory import MemoryDesk
from gateway.residency.plan import Blocked, Evict, Start, Wait, choose_drain, decide, fits_beside, refusal
from gateway.residency.queue import Claim, Entry
from gateway.residency.resident import ResidencyManager
from gateway.residency.room import Room, candidate
from gateway.residency.states import Cause, State, Trigger
from gateway.residency.timers import Timer, TimerKind
from gateway.residency.worker_desk import WorkerDesk

__all__ = ["Planner"]

_MOST_STEPS = 100_000


class Planner:
    """The one place where loads begin and residents are evicted for them."""

    def __init__(
        self,
        house: House,
        room: Room,
        front: FrontDesk,
        admin: AdminDesk,
        workers: WorkerDesk,
        memory: MemoryDesk,
    ) -> None:
        self.house = house
        self.room = room
        self.front = front
        self.admin = admin
        self.workers = workers
        self.memory = memory

    def run(self) -> None:
        """Until nothing changes. Each step takes somebody nearer to where they go, so there is an end; a defect must not hang."""
        for _ in range(_MOST_STEPS):
            if not self._step():
                return
        raise AssertionError("the planner does not come to rest")

    def _step(self) -> bool:
        if self.memory.govern():  # 1.
            return True
        if self._serve_queue():  # 2.
            return True
        if self.house.shutting_down:
            return False
        if self.memory.grow():  # 3.
            return True
        return self._walk()

    def _serve_queue(self) -> bool:
        """Step 2."""
        house = self.house
        for entry in house.queue:
            resident = house.residents[entry.key]
            granted = resident.state is State.LOADED and house.open
            if not granted and not (resident.state is State.LOADING and not resident.unloads):
                continue
            house.queue.drop(entry.key)
            self._take_from_queue(entry)
            if granted:
                for waiter in in_turn(entry.waiters.values()):
                    self.front.grant(resident, waiter)
                for caller in entry.admins:
                    self.admin.answer_loaded(caller, resident)
            else:
                self._join(resident, entry)
            return True
        return False

    def _take_from_queue(self, entry: Entry) -> None:
        """Its callers' clocks stop: from here the load's timeout rules."""
        for waiter in entry.waiters:
            self.house.timers.cancel(Timer(TimerKind.WAITER, waiter))
        for caller in entry.admins:
            self.house.timers.cancel(Timer(TimerKind.ADMIN_LOAD, caller.id))
        self.house.timers.cancel(Timer(TimerKind.FAIRNESS, entry.key))

    def _join(self, resident: ResidencyManager, entry: Entry) -> None:
        resident.joiners.update(entry.waiters)
        resident.admin_loads.extend(entry.admins)
        resident.solicited = resident.solicited or bool(entry.admins) or entry.preload
        resident.watch_abandon()

    # --- steps 4 to 7

    def _walk(self) -> bool:
        house = self.house
        ready: list[Entry] = []
        held_back: list[Entry] = []
        # 4.
        for entry in house.queue:
            resident = house.residents[entry.key]
            if resident.state not in (State.UNLOADED, State.FAILED):
                continue
            error = refusal(self.room.outlook(entry.key))
            if error is not None:
                if entry.preload:
                    house.announce(resident, resident.state, error.code)  # nobody else would know
                house.fail_entry(entry, error)
                return True
            # After a reload the old key's bytes are waited for: the new one may only load beside it, where both fit.
            (held_back if house.before(resident) else ready).append(entry)
        head = self._choose_head(ready)
        if self._drop_stale_intents():
            return True
        if not house.open:
            return False
        # 5.
        loading = house.loading()
        if loading is not None and loading.unwanted:
            loading.abort(Trigger.LAST_WAITER_CANCELS, Cause.ADMIN)
            return True
        if loading is not None and loading.abandoned and self._anyone_needs(ready, held_back):
            self.workers.yield_load(loading, Trigger.LAST_WAITER_CANCELS, Claim("load", head.key) if head else None)
            return True
        # 6.
        if head is not None and self._plan_head(head, loading):
            return True
        # 7.
        later = [entry for entry in (*ready, *held_back) if entry is not head]
        return loading is None and any(self._overtake(entry) for entry in later)

    def _choose_head(self, ready: list[Entry]) -> Entry | None:
        """The first; but two heads stay the head.

        - One whose plan is under way, also before an older one that comes back to the queue.
        - One for which bytes were kept, before one of a higher priority that came later: no such may take them.
        """
        queue = self.house.queue
        before = queue.get(queue.head) if queue.head is not None else None
        head = ready[0] if ready else None
        if before is not None and before in ready and before.waiters and head is not None:
            later = before.freed_bytes > 0 and head.place.order > before.place.order
            head = before if before.promised or later else head
        if before is not None and before is not head:
            before.promised, before.freed_bytes = False, 0  # its earmark lapses
        queue.head = head.key if head else None
        return head

    def _anyone_needs(self, ready: list[Entry], held_back: list[Entry]) -> bool:
        growing = any(r.current.growth is not None for r in self.house.residents.values())
        return (
            bool(ready) or growing or any(fits_beside(self.room.outlook(entry.key)) is not None for entry in held_back)
        )

    def _drop_stale_intents(self) -> bool:
        """Rivals that wait no more, and drains that a member has left on its own way."""
        house = self.house
        for rival, intent in list(house.intents.items()):
            members = [house.residents.get(key) for key in intent.members]
            whole = all(member is not None and fairness.revocable(member) for member in members)
            if not whole or not house.waits(rival):
                return fairness.cancel(house, rival)
        return False

    def _plan_head(self, entry: Entry, loading: ResidencyManager | None) -> bool:
        """Step 6. True when something changed."""
        view, claim = self.room.view(entry.key), Claim("load", entry.key)
        decision = decide(view, self.house.settings.policy)
        if isinstance(decision, Blocked) and loading is not None and loading.yields and entry.waiters:
            # An operator's or a preload's load gives up its bytes to callers, where nothing else helps.
            wider = replace(view, candidates=(*view.candidates, candidate(loading)))
            decision = decide(wider, self.house.settings.policy)
        if isinstance(decision, Blocked):
            return self._wait_for_fairness(entry, decision, view.pending + view.available, loading)
        if isinstance(decision, Start):
            entry.needed_bytes, entry.promised = view.sizes.static + decision.grant, True
            changed = fairness.cancel(self.house, claim)
            if loading is None:
                self._start(entry, decision.grant)
                return True
            return changed
        if isinstance(decision, Wait):
            entry.needed_bytes, entry.promised = decision.needed, True
            return fairness.cancel(self.house, claim)
        assert isinstance(decision, Evict), "refusals were taken out before"
        return self._evict(entry, decision, loading)

    def _evict(self, entry: Entry, decision: Evict, loading: ResidencyManager | None) -> bool:
        house, claim = self.house, Claim("load", entry.key)
        drained = claim in house.intents
        if loading is not None and loading.key not in decision.keys and not drained:
            entry.needed_bytes = decision.needed
            return False  # the slot first; a drain that has come to its end is used at once
        entry.needed_bytes, entry.promised = decision.needed, True
        for key in decision.keys:
            victim = house.residents[key]
            if victim.state is State.UNLOADING:
                victim.evictions += 1
                victim.send_teardown()
            elif victim.state is State.LOADING:
                self.workers.yield_load(victim, Trigger.EVICT, claim)
            else:
                victim.unload(Trigger.EVICT, Cause.EVICTED, claim)
        return True  # a drain that led here ends with the next step, whoever is left of it serves again

    def _wait_for_fairness(
        self, entry: Entry, blocked: Blocked, reachable: int, loading: ResidencyManager | None
    ) -> bool:
        """No set of idle models will do.

        1. The head waits ``fairness_wait_s``; operators and preloads for ever.
        2. A drain under way goes on; none begins while another load holds the slot.
        3. Drain the leased one that makes a set with the idle ones, or as many as it takes; for a whole row of KV, or where
           that is out of reach for a shorter one.
        """
        house, claim = self.house, Claim("load", entry.key)
        timer = Timer(TimerKind.FAIRNESS, entry.key)
        entry.needed_bytes = blocked.needed
        entry.promised = claim in house.intents
        # 1.
        if not entry.waiters:
            return False
        wait = house.models[next(iter(entry.waiters.values())).model].policy.fairness_wait_s
        if entry.blocked_since is None:
            entry.blocked_since = house.now
            house.timers.set(timer, house.now + wait)
        if entry.promised or house.now < entry.blocked_since + wait:
            return False
        # 2.
        if loading is not None:
            return False
        # 3.
        idle, leased = self.room.idle(claim), self.room.drainable()
        for needed in (blocked.needed, house.residents[entry.key].sizes.least):
            drain = choose_drain(needed - reachable, idle, leased, house.settings.policy)
            if drain is not None and drain.drain:
                members = [house.residents[key] for key in (*drain.drain, *drain.hold)]
                fairness.begin(house, claim, members, wait)
                entry.promised = True
                return True
        return False

    def _overtake(self, entry: Entry) -> bool:
        """Step 7."""
        grant = fits_beside(self.room.outlook(entry.key))
        if grant is None:
            return False
        self._start(entry, grant)
        return True

    def _start(self, entry: Entry, grant: int) -> None:
        """The load begins, for everybody in the entry."""
        resident = self.house.residents[entry.key]
        trigger = Trigger.REQUEST if entry.waiters else Trigger.ADMIN_LOAD
        label = "request" if entry.waiters else "admin load" if entry.admins else "preload"
        self.house.queue.drop(entry.key)
        self._take_from_queue(entry)
        resident.begin_load(trigger, grant, label)
        self._join(resident, entry)
