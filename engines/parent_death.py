"""A process that does not outlive the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def die_with_parent(parent: int) -> None:
    """Linux: SIGKILL when the thread that started this process ends. Exits now if ``parent`` ended before this call."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
