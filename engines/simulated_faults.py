"""How the simulated engine breaks down."""

from __future__ import annotations

import os
import resource
import threading

__all__ = ["abort_process", "hang_thread"]


def abort_process() -> None:
    """As Metal ends a process whose memory is out."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the abort is wanted; its core dump is not
    os.abort()


def hang_thread() -> None:
    """For ever."""
    threading.Event().wait()
