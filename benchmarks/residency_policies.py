"""Which models to evict: policies on traces, on a virtual clock.

A device serves 20 models in room for about a third of them: one load at a time, first come first served, a lease for the
length of each answer, victims from what is not leased. A load lasts half a second and a second for each 2 GiB.

- *hit rate*: requests whose model was loaded when they came
- *mean wait*: seconds from a request to its lease

``lru``, ``largest`` and ``priority`` are the gateway's own functions. The others are what the default has to hold its own
against: least frequently used, GDSF (frequency and load cost a byte, aged), LRU that looks at no sizes; and as a bound, furthest
next use, which knows the future, and keeps those of its victims that were not needed after all.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count

from gateway.residency.eviction import POLICIES, Candidate

__all__ = ["measure_policies"]

MODELS = 20
REQUESTS = 10_000
DEFAULT = "lru"
_GIB = 1024**3
_ROOM = 0.33  # of all models together
_LOAD_BASE_S = 0.5
_LOAD_BYTES_PER_S = 2 * _GIB


@dataclass(frozen=True)
class Arrival:
    """A request: when, for which model, and how long its answer takes (seconds)."""

    at: float
    model: int
    service_s: float


@dataclass(frozen=True)
class Trace:
    """Requests in order, each model's bytes, and each model's priority (0 low to 2 high)."""

    arrivals: tuple[Arrival, ...]
    sizes: tuple[int, ...]
    priorities: tuple[int, ...]

    @property
    def budget(self) -> int:
        return max(int(sum(self.sizes) * _ROOM), max(self.sizes))

    def load_s(self, model: int) -> float:
        return _LOAD_BASE_S + self.sizes[model] / _LOAD_BYTES_PER_S


@dataclass(frozen=True)
class Outcome:
    hit_rate: float
    mean_wait_s: float


class Chooser:
    """What a policy is told, and asked: the models to unload for ``needed`` bytes, None when no set of them does."""

    def used(self, model: int, now: float) -> None:
        """A request for it was granted."""

    def choose(self, candidates: Sequence[Candidate], needed: int, now: float) -> Sequence[int] | None:
        raise NotImplementedError


class Ours(Chooser):
    """One of the gateway's policies."""

    def __init__(self, name: str) -> None:
        self._policy = POLICIES[name]

    def choose(self, candidates: Sequence[Candidate], needed: int, now: float) -> Sequence[int] | None:
        if sum(candidate.bytes for candidate in candidates) < needed:
            return None
        chosen = self._policy(candidates, needed)
        return None if chosen is None else [int(key) for key in chosen]


class Ordered(Chooser):
    """Evicts in the order of a value, the smallest first, until enough is free."""

    def value(self, candidate: Candidate, now: float) -> float:
        raise NotImplementedError

    def choose(self, candidates: Sequence[Candidate], needed: int, now: float) -> list[int] | None:
        chosen = []
        for candidate in sorted(candidates, key=lambda candidate: self.value(candidate, now)):
            if needed <= 0:
                break
            chosen.append(int(candidate.key))
            needed -= candidate.bytes
        return chosen if needed <= 0 else None


class SizeBlindLru(Ordered):
    def value(self, candidate: Candidate, now: float) -> float:
        return candidate.last_used


class Lfu(Ordered):
    """Counts requests since the beginning; of equals the least recently used goes."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def used(self, model: int, now: float) -> None:
        self._counts[model] += 1

    def value(self, candidate: Candidate, now: float) -> float:
        return self._counts[int(candidate.key)] + candidate.last_used * 1e-9


class Gdsf(Ordered):
    """Greedy dual size frequency (Cherkasova 1998): age + frequency · cost / size, the cost being the load's seconds."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._age = 0.0
        self._counts: Counter[int] = Counter()
        self._values: dict[int, float] = {}

    def used(self, model: int, now: float) -> None:
        self._counts[model] += 1
        gibibytes = self._trace.sizes[model] / _GIB
        self._values[model] = self._age + self._counts[model] * self._trace.load_s(model) / gibibytes

    def value(self, candidate: Candidate, now: float) -> float:
        return self._values.get(int(candidate.key), self._age)

    def choose(self, candidates: Sequence[Candidate], needed: int, now: float) -> list[int] | None:
        chosen = super().choose(candidates, needed, now)
        for model in chosen or ():
            self._age = max(self._age, self._values.get(model, 0.0))
            self._counts[model] = 0
        return chosen


class FurthestNextUse(Ordered):
    """Knows the trace."""

    def __init__(self, trace: Trace) -> None:
        self._uses: dict[int, deque[float]] = {model: deque() for model in range(MODELS)}
        for arrival in trace.arrivals:
            self._uses[arrival.model].append(arrival.at)

    def value(self, candidate: Candidate, now: float) -> float:
        uses = self._uses[int(candidate.key)]
        while uses and uses[0] <= now:
            uses.popleft()
        return -uses[0] if uses else -float("inf")

    def choose(self, candidates: Sequence[Candidate], needed: int, now: float) -> list[int] | None:
        chosen = super().choose(candidates, needed, now)
        if chosen is None:
            return None
        sizes = {int(candidate.key): candidate.bytes for candidate in candidates}
        spare = sum(sizes[model] for model in chosen) - needed
        for model in reversed(tuple(chosen)):  # needed soonest first
            if sizes[model] <= spare:
                spare -= sizes[model]
                chosen.remove(model)
        return chosen


CHOOSERS: dict[str, Callable[[Trace], Chooser]] = {
    "lru": lambda _: Ours("lru"),
    "largest": lambda _: Ours("largest"),
    "priority": lambda _: Ours("priority"),
    "size-blind lru": lambda _: SizeBlindLru(),
    "lfu": lambda _: Lfu(),
    "gdsf": Gdsf,
    "furthest next use": FurthestNextUse,
}
_BOUND = "furthest next use"


@dataclass
class _Resident:
    leases: int = 0
    last_used: float = 0.0


@dataclass
class _House:
    """The device. Time comes from the events."""

    trace: Trace
    chooser: Chooser
    residents: dict[int, _Resident] = field(default_factory=dict)
    waiting: dict[int, list[Arrival]] = field(default_factory=dict)  # in the order in which models are loaded
    loading: int | None = None
    hits: int = 0
    waited_s: float = 0.0
    events: list[tuple[float, int, str, int]] = field(default_factory=list)  # time, order, kind, model
    order: Iterator[int] = field(default_factory=count)

    def run(self) -> Outcome:
        arrivals = deque(self.trace.arrivals)
        while arrivals or self.events:
            if arrivals and (not self.events or arrivals[0].at <= self.events[0][0]):
                self._arrive(arrivals.popleft())
                continue
            now, _, kind, model = heapq.heappop(self.events)
            if kind == "release":
                self.residents[model].leases -= 1
                self.residents[model].last_used = now
            else:
                self._loaded(model, now)
            self._load_next(now)
        requests = len(self.trace.arrivals)
        return Outcome(self.hits / requests, self.waited_s / requests)

    def _arrive(self, arrival: Arrival) -> None:
        if arrival.model in self.residents:
            self.hits += 1
            self._lease(arrival, arrival.at)
            return
        self.waiting.setdefault(arrival.model, []).append(arrival)
        self._load_next(arrival.at)

    def _lease(self, arrival: Arrival, now: float) -> None:
        resident = self.residents[arrival.model]
        resident.leases += 1
        resident.last_used = now
        self.waited_s += now - arrival.at
        self.chooser.used(arrival.model, now)
        self._at(now + arrival.service_s, "release", arrival.model)

    def _loaded(self, model: int, now: float) -> None:
        self.loading = None
        self.residents[model] = _Resident(last_used=now)
        for arrival in self.waiting.pop(model):
            self._lease(arrival, now)

    def _load_next(self, now: float) -> None:
        if self.loading is not None or not self.waiting:
            return
        model = next(iter(self.waiting))
        sizes = self.trace.sizes
        free = self.trace.budget - sum(sizes[resident] for resident in self.residents)
        needed = sizes[model] - free
        if needed > 0:
            candidates = [
                Candidate(str(key), sizes[key], resident.last_used, self.trace.priorities[key])
                for key, resident in self.residents.items()
                if not resident.leases
            ]
            victims = self.chooser.choose(candidates, needed, now)
            if victims is None:
                return  # until a lease is released
            for victim in victims:
                del self.residents[victim]
        self.loading = model
        self._at(now + self.trace.load_s(model), "loaded", model)

    def _at(self, time: float, kind: str, model: int) -> None:
        heapq.heappush(self.events, (time, next(self.order), kind, model))


# --- traces ---------------------------------------------------------------------------------------------------------


def _mixed_sizes(rng: random.Random) -> list[int]:
    """0.3 to about 20 GiB, most of them small."""
    return [int(min(24.0, max(0.3, rng.lognormvariate(1.2, 1.0))) * _GIB) for _ in range(MODELS)]


def _poisson(rng: random.Random, pick: Callable[[int], int], mean_gap_s: float = 4.0) -> tuple[Arrival, ...]:
    gaps = accumulate(rng.expovariate(1 / mean_gap_s) for _ in range(REQUESTS))
    return tuple(Arrival(at, pick(i), rng.expovariate(1 / 2.0)) for i, at in enumerate(gaps))


def _trace(rng: random.Random, arrivals: tuple[Arrival, ...], sizes: Sequence[int]) -> Trace:
    return Trace(arrivals, tuple(sizes), tuple(rng.choice((0, 1, 1, 2)) for _ in range(MODELS)))


def _by_weight(rng: random.Random, exponent: float, *, shuffled: bool = True) -> Callable[[int], int]:
    """Picks a model for each request by Zipf's law; not shuffled, model 0 is the most popular."""
    order = list(range(MODELS))
    if shuffled:
        rng.shuffle(order)
    weights = [1 / rank**exponent for rank in range(1, MODELS + 1)]
    return lambda _: rng.choices(order, weights)[0]


def zipf_equal(rng: random.Random) -> Trace:
    """Zipf popularity, models of one size."""
    return _trace(rng, _poisson(rng, _by_weight(rng, 1.0)), [4 * _GIB] * MODELS)


def zipf_mixed(rng: random.Random) -> Trace:
    """Zipf popularity, sizes mixed."""
    return _trace(rng, _poisson(rng, _by_weight(rng, 1.0)), _mixed_sizes(rng))


def zipf_large(rng: random.Random) -> Trace:
    """The large models are the popular ones."""
    pick = _by_weight(rng, 1.0, shuffled=False)
    return _trace(rng, _poisson(rng, pick), sorted(_mixed_sizes(rng), reverse=True))


def zipf_small(rng: random.Random) -> Trace:
    """The small models are the popular ones."""
    pick = _by_weight(rng, 1.0, shuffled=False)
    return _trace(rng, _poisson(rng, pick), sorted(_mixed_sizes(rng)))


def drift(rng: random.Random) -> Trace:
    """Zipf popularity whose ranks move on by one every 250 requests."""
    pick = _by_weight(rng, 1.2, shuffled=False)
    return _trace(rng, _poisson(rng, lambda i: (pick(i) + i // 250) % MODELS), _mixed_sizes(rng))


def bursts(rng: random.Random) -> Trace:
    """Sessions of one model, about 15 requests with little between, several sessions at a time."""
    pick = _by_weight(rng, 0.8)
    arrivals: list[Arrival] = []
    began = 0.0
    while len(arrivals) < REQUESTS:
        began += rng.expovariate(1 / 45.0)
        at, model = began, pick(0)
        for _ in range(1 + int(rng.expovariate(1 / 14))):
            arrivals.append(Arrival(at, model, rng.expovariate(1 / 2.0)))
            at += rng.expovariate(1 / 6.0)
    return _trace(rng, tuple(sorted(arrivals, key=lambda a: a.at)[:REQUESTS]), _mixed_sizes(rng))


def pipelines(rng: random.Random) -> Trace:
    """Apps that ask two to four models in turn, round after round."""
    pick = _by_weight(rng, 0.8)
    arrivals: list[Arrival] = []
    began = 0.0
    while len(arrivals) < REQUESTS:
        began += rng.expovariate(1 / 90.0)
        at, models = began, [pick(0) for _ in range(rng.randint(2, 4))]
        for turn in range(len(models) * rng.randint(3, 10)):
            arrivals.append(Arrival(at, models[turn % len(models)], rng.expovariate(1 / 2.0)))
            at += rng.expovariate(1 / 5.0)
    return _trace(rng, tuple(sorted(arrivals, key=lambda a: a.at)[:REQUESTS]), _mixed_sizes(rng))


TRACES: dict[str, Callable[[random.Random], Trace]] = {
    "zipf, equal sizes": zipf_equal,
    "zipf, mixed sizes": zipf_mixed,
    "zipf, large popular": zipf_large,
    "zipf, small popular": zipf_small,
    "drifting": drift,
    "bursts": bursts,
    "pipelines": pipelines,
}


def measure_policies(*, seeds: int) -> None:
    print(f"{MODELS} models, {REQUESTS} requests, medians of {seeds} seeds; hit rate and mean wait (s)")
    print(f"{'':<22}" + "".join(f"{name:>19}" for name in CHOOSERS))
    better: Counter[str] = Counter()
    for title, make in TRACES.items():
        results: dict[str, Outcome] = {}
        for name, chooser in CHOOSERS.items():
            runs = []
            for seed in range(seeds):
                trace = make(random.Random(seed))
                runs.append(_House(trace, chooser(trace)).run())
            results[name] = Outcome(
                statistics.median(run.hit_rate for run in runs), statistics.median(run.mean_wait_s for run in runs)
            )
        print(
            f"{title:<22}"
            + "".join(f"{result.hit_rate:>10.1%}{result.mean_wait_s:>9.2f}" for result in results.values()),
            flush=True,
        )
        for name, result in results.items():
            better[name] += result.mean_wait_s < 0.9 * results[DEFAULT].mean_wait_s
    for name, traces in better.items():
        if traces and name != _BOUND:
            print(f"{name} waits over 10 % less than {DEFAULT} on {traces} of {len(TRACES)} traces")
