"""Who is in memory, and for whom.

Two halves that speak only through ``messages``::

    core (sans-IO, decides)                        shell (asyncio, acts)
    manager ── desks, planner, room, resident      shell.Residency ── what routes ask for a Lease
        handle(event, now) → [effect, …]               ├── lease            one caller's hold on a model
        never awaits, never logs                       ├── operators        verbs, and the future each answer comes in
                                                       ├── event_feed       transitions, for whoever watches
                                                       ├── learned_store    measured sizes, in the state directory
                                                       ├── reload, pins     a registry file, checked before it is taken
                                                       └── worker_fleet     every worker; spare keeps a warm one
                                                             └── worker_host     one worker: requests, load, close
                                                                   ├── worker_process  spawn, kill the group, see it gone
                                                                   ├── frame_socket    frames in and out
                                                                   └── request_stream  one request's events

A request's way: ``Residency.acquire`` asks the core; its ``GrantLease`` makes the Lease hold a worker host; ``Lease.stream``
submits and reads; when the last event is in and the caller lets go, the core hears ``LeaseReleased``.

``shell.Residency`` and ``lease.Lease`` are what other packages use; importing this package imports neither.
"""
