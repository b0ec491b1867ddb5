"""Freed memory goes back to the system, whichever thread made it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engines.heap import trim_heap

_HOLES = """
import threading
from engines.device import SmapsProbe
from engines.heap import set_up_heap, trim_heap
set_up_heap()
probe = SmapsProbe()
left = []
def work():
    blocks = [b"x" * 60_000 for _ in range(1000)]
    left.extend(blocks[::20])
before = probe.read()
thread = threading.Thread(target=work)
thread.start()
thread.join()
trim_heap()
print(probe.read() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the CPU's memory probe needs Linux")
def test_heap_with_holes_is_given_back() -> None:
    result = subprocess.run([sys.executable, "-c", _HOLES], capture_output=True, text=True, timeout=30, check=True)
    assert int(result.stdout) < 10 * 1024**2  # of 60 MB, of which 3 MB stay


def test_heap_can_be_trimmed_at_any_time() -> None:
    trim_heap()
    trim_heap()
