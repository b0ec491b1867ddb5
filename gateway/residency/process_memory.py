"""What another process of ours takes in memory, as far as the system says without its help."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["process_bytes", "resident_bytes"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """RSS of a process, in bytes, shared pages in full; 0 where the system does not say (macOS) or it is gone.

    Costs microseconds, whatever the process holds.
    """
    try:
        return int((proc / str(pid) / "statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def process_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """``Anonymous`` + ``Pss_File`` of a process, in bytes; 0 where the system does not say (macOS) or it is gone.

    Shared file pages (the interpreter, libraries) count by share, so that the sum over workers is true. Costs milliseconds a
    GiB: for processes that hold no model.
    """
    try:
        lines = (proc / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    wanted = ("Anonymous:", "Pss_File:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(wanted))
