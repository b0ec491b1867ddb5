"""A world for the residency core: a clock that only tests move, workers that do what they are told, everything recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from engines.footprint import Footprint
from engines.wire import ModelSpec, Priority, SimulateSpec
from gateway.errors import GatewayError, ModelLoadFailed
from gateway.registry.schema import Policy
from gateway.residency import messages as m
from gateway.residency.manager import ModelManager
from gateway.residency.resident import ResidencyManager
from gateway.residency.states import State

__all__ = ["GIB", "World", "model"]

GIB = 1024**3
_E = TypeVar("_E")


def model(
    id: str,
    gib: float = 4,
    *,
    key: str | None = None,
    content: str | None = None,
    kv_per_token: int = 0,
    context: int = 8192,
    kv_grant: int | None = None,
    simulated: bool = True,
    error: GatewayError | None = None,
    **policy: Any,
) -> m.ModelInfo:
    """A registry entry of ``gib`` GiB static; its resident key is its id unless said."""
    size = int(gib * GIB)
    return m.ModelInfo(
        id=id,
        resident_key=key or id,
        content_key=content or key or id,
        spec=ModelSpec(
            id=id,
            task="text",
            format="sim" if simulated else "gguf",
            paths=(),
            simulate=SimulateSpec(weights_bytes=size) if simulated else None,
        ),
        footprint=Footprint(size, kv_per_token, 0, context),
        kv_grant_bytes=kv_grant,
        policy=Policy(**policy),
        error=error,
    )


class World:
    """The shell's side. Every step ends with ``check_integrity``.

    ``effects`` are those of the last step, ``log`` those of all. Workers are moved by hand: ``ready``, ``exit``, ….
    """

    def __init__(
        self,
        *models: m.ModelInfo,
        gib: float = 10,
        budget: int | None = None,
        policy: str = "lru",
        learned: dict[str, m.LearnedValue] | None = None,
        device_free: Callable[[], int | None] = lambda: None,
        **settings: Any,
    ) -> None:
        self.now = 1000.0
        self.manager = ModelManager(
            m.ManagerSettings(
                budget_bytes=int(gib * GIB) if budget is None else budget,
                policy=policy,
                **settings,
            ),
            learned,
            device_free,
        )
        self.house = self.manager._house
        self.effects: list[m.Effect] = []
        self.log: list[m.Effect] = []
        self.due: float | None = None  # as the last SetTimer says
        self.ids = 0
        self.granted: dict[int, m.GrantLease] = {}
        self.failed: dict[int, GatewayError] = {}
        self.ended: dict[str, GatewayError] = {}
        self.answers: dict[int, m.AdminAnswer | GatewayError] = {}
        self.specs: dict[tuple[str, int], m.StartWorker] = {}
        self.registry(*models)

    # --- steps

    def do(self, event: m.Event) -> list[m.Effect]:
        """One step of the core, at the present time."""
        if isinstance(event, m.Tick):
            self.due = None  # the shell's timer has fired, or will be told again
        self.effects = self.manager.handle(event, self.now)
        self.log += self.effects
        for effect in self.effects:
            match effect:
                case m.GrantLease():
                    self.granted[effect.waiter] = effect
                case m.FailWaiter():
                    self.failed[effect.waiter] = effect.error
                case m.RequeueLease():
                    self.granted.pop(effect.waiter, None)
                case m.EndLease():
                    self.ended[effect.lease] = effect.error
                case m.AnswerAdmin():
                    assert effect.admin not in self.answers, "answered twice"
                    self.answers[effect.admin] = effect.answer
                case m.StartWorker():
                    self.specs[effect.key, effect.generation] = effect
                case m.SetTimer():
                    self.due = effect.at
                case _:
                    pass
        self.manager.check_integrity()
        return self.effects

    def advance(self, seconds: float) -> None:
        """Time passes; each deadline on the way is honoured when it comes."""
        end = self.now + seconds
        while self.due is not None and self.due <= end:
            self.now = max(self.now, self.due)
            self.do(m.Tick())
        self.now = end
        self.do(m.Tick())

    def seen(self, kind: type[_E]) -> list[_E]:
        """Effects of one kind in the last step."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def logged(self, kind: type[_E]) -> list[_E]:
        """Effects of one kind in all steps."""
        return [effect for effect in self.log if isinstance(effect, kind)]

    # --- callers

    def request(self, id: str, priority: Priority = "normal") -> int:
        """A caller; returns its waiter id."""
        self.ids += 1
        self.do(m.Request(self.ids, id, "client", "/v1/chat/completions", priority))
        return self.ids

    def lease(self, id: str) -> str:
        """A caller that is granted at once; returns its lease."""
        waiter = self.request(id)
        return self.granted[waiter].lease

    def cancel(self, waiter: int) -> None:
        self.do(m.CancelWaiter(waiter))

    def release(self, lease: str | int) -> None:
        """A lease by its id, or by its waiter's."""
        self.do(m.LeaseReleased(self.granted[lease].lease if isinstance(lease, int) else lease))

    def admit(self, lease: str | int) -> None:
        self.do(m.LeaseAdmitted(self.granted[lease].lease if isinstance(lease, int) else lease))

    # --- workers

    def ready(self, key: str, **measured: Any) -> None:
        """The worker that loads ``key`` is done; it measures what was estimated unless said."""
        resident = self.resident(key)
        measured.setdefault("static_bytes", resident.current.static_estimate)
        self.do(m.WorkerReady(key, resident.generation, **measured))

    def fail(self, key: str, message: str = "truncated file") -> None:
        self.do(m.LoadFailed(key, self.resident(key).generation, ModelLoadFailed(message)))

    def exit(self, key: str, *, held: int = 0, generation: int | None = None, detail: str = "exit 0") -> None:
        generation = self.resident(key).generation if generation is None else generation
        self.do(m.WorkerExited(key, generation, detail, held))

    def free(self, key: str, *, held: int = 0, generation: int | None = None) -> None:
        generation = self.resident(key).generation if generation is None else generation
        self.do(m.ReleaseObserved(key, generation, held))

    def report(self, key: str, *, static: int | None = None, kv: int = 0, **caches: int) -> None:
        resident = self.resident(key)
        static = resident.current.measured.static if static is None else static
        self.do(m.MemoryReport(key, resident.generation, static, kv, **caches))

    def grow(self, key: str, byte_count: int, request: int = 1) -> None:
        self.do(m.GrowRequest(key, self.resident(key).generation, byte_count, request))

    def load(self, id: str) -> None:
        """Brings it to LOADED without a lease, through the admin API."""
        self.admin_load(id)
        self.ready(self.house.models[id].resident_key)
        assert self.state(id) is State.LOADED

    def serve(self, id: str) -> int:
        """Brings it to LOADED with one lease; returns its waiter."""
        waiter = self.request(id)
        if waiter not in self.granted:
            self.ready(self.house.models[id].resident_key)
        return waiter

    # --- operators

    def admin_load(self, id: str) -> int:
        self.ids += 1
        self.do(m.AdminLoad(self.ids, id))
        return self.ids

    def unload(self, id: str, mode: m.UnloadMode = "drain", deadline: float = 30.0) -> int:
        self.ids += 1
        self.do(m.AdminUnload(self.ids, id, mode, deadline))
        return self.ids

    def pin(self, id: str) -> int:
        self.ids += 1
        self.do(m.Pin(self.ids, id))
        return self.ids

    def unpin(self, id: str) -> int:
        self.ids += 1
        self.do(m.Unpin(self.ids, id))
        return self.ids

    def registry(self, *models: m.ModelInfo) -> None:
        self.do(m.RegistryChanged(models))

    def shutdown(self, grace: float = 30.0) -> None:
        self.do(m.Shutdown(grace))

    # --- what is

    def resident(self, key: str) -> ResidencyManager:
        return self.house.residents[key]

    def state(self, id: str) -> State:
        return self.house.resident_of(id).state

    def states(self) -> dict[str, State]:
        return {id: self.state(id) for id in self.house.models}

    @property
    def charged(self) -> int:
        return self.house.budget.charged_bytes
