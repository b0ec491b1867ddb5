"""What another process of ours takes in memory, as far as the system says without its help."""

from __future__ import annotations

from pathlib import Path

__all__ = ["process_bytes"]


def process_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """``Anonymous`` + ``Pss_File`` of a process, in bytes; 0 where the system does not say (macOS) or it is gone.

    Shared file pages (the interpreter, libraries) count by share, so that the sum over workers is true.
    """
    try:
        lines = (proc / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    wanted = ("Anonymous:", "Pss_File:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(wanted))
