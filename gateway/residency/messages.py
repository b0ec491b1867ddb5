"""What goes into the residency core and what comes out: events, effects, and the values both carry.

The shell (``shell.py``) and the core (``manager.py``) speak only through this file::

    effects = manager.handle(event, now)     # now: seconds of one monotonic clock, never going back
    for effect in effects: run(effect)       # in order, before the next handle()

A LOADED model is leased without an event: ``grant = manager.acquire_nowait(waiter, model, client, route, now, priority)`` answers
a ``GrantLease`` (nothing else to run) or None; on None the shell sends ``Request`` with the same waiter id.

Rules for the shell
-------------------
1. It runs effects in the order given. It may call ``handle`` again only after it has *begun* each of them (frames queued,
   futures set, processes asked for); none needs to have ended.
2. Every ``StartWorker`` is answered by exactly one ``WorkerExited`` of the same key and generation, at some time: also when
   the process could not be spawned (then after ``LoadFailed``). ``WorkerExited`` means the whole process group is gone: on a
   bare end of file the shell kills the group first and reports when it has.
3. Each waiter id and each admin id is used once. A waiter is settled by exactly one ``GrantLease`` or ``FailWaiter``, unless
   the shell cancelled it. ``RequeueLease`` unsettles it: it will be settled once more.
4. Time: the last ``SetTimer`` rules. When it is due the shell sends ``Tick``; it sends one each second besides. A Tick too
   many is harmless.
5. The core knows what the last ``RegistryChanged`` said. The shell sends one whenever what the catalog resolves differs (a
   reload, a file that was replaced or repaired), before the request that noticed it.
6. Events of a generation that is gone are welcome: the core counts and drops them.

Sizes are integer bytes, times are seconds. Errors for callers are :mod:`gateway.errors` instances, one fresh instance a
caller.
"""

from gateway.residency.effects import (
    AnswerAdmin,
    CancelLease,
    DenyGrowth,
    Effect,
    EmitTransition,
    EndLease,
    FailWaiter,
    GrantLease,
    KillWorker,
    ObserveRelease,
    PersistLearned,
    RequeueLease,
    SendClose,
    SetGrant,
    SetTimer,
    Shed,
    ShutdownComplete,
    StartWorker,
)
from gateway.residency.events import (
    AdminLoad,
    AdminUnload,
    CancelWaiter,
    Event,
    GrowRequest,
    KeepAlive,
    LeaseAdmitted,
    LeaseReleased,
    LoadFailed,
    LoadProgress,
    MemoryReport,
    OverheadMeasured,
    Pin,
    RegistryChanged,
    ReleaseObserved,
    Request,
    Shutdown,
    Tick,
    Unpin,
    WidthChanged,
    WorkerExited,
    WorkerReady,
    WorkerStarted,
)
from gateway.residency.values import (
    AdminAnswer,
    AdminId,
    LearnedValue,
    LeaseId,
    ManagerSettings,
    ModelInfo,
    UnloadMode,
    WaiterId,
)

__all__ = [
    "AdminAnswer",
    "AdminId",
    "AdminLoad",
    "AdminUnload",
    "AnswerAdmin",
    "CancelLease",
    "CancelWaiter",
    "DenyGrowth",
    "Effect",
    "EmitTransition",
    "EndLease",
    "Event",
    "FailWaiter",
    "GrantLease",
    "GrowRequest",
    "KeepAlive",
    "KillWorker",
    "LearnedValue",
    "LeaseAdmitted",
    "LeaseId",
    "LeaseReleased",
    "LoadFailed",
    "LoadProgress",
    "ManagerSettings",
    "MemoryReport",
    "ModelInfo",
    "ObserveRelease",
    "OverheadMeasured",
    "PersistLearned",
    "Pin",
    "RegistryChanged",
    "ReleaseObserved",
    "Request",
    "RequeueLease",
    "SendClose",
    "SetGrant",
    "SetTimer",
    "Shed",
    "Shutdown",
    "ShutdownComplete",
    "StartWorker",
    "Tick",
    "UnloadMode",
    "Unpin",
    "WaiterId",
    "WidthChanged",
    "WorkerExited",
    "WorkerReady",
    "WorkerStarted",
]
