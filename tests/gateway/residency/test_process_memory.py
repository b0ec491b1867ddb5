"""Reading another process's memory."""

from __future__ import annotations

import os
from pathlib import Path

from gateway.residency.process_memory import process_bytes, resident_bytes


def test_process_memory_is_anonymous_and_file_share(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "smaps_rollup").write_text("1-2 [rollup]\nRss: 90 kB\nPss_File:  2 kB\nAnonymous:  30 kB\n")
    (tmp_path / "7" / "statm").write_text("100 25 3 1 0 50 0\n")
    assert process_bytes(7, tmp_path) == 32 * 1024
    assert resident_bytes(7, tmp_path) == 25 * os.sysconf("SC_PAGE_SIZE")


def test_process_memory_of_none_is_zero(tmp_path: Path) -> None:
    assert process_bytes(7, tmp_path) == 0 == resident_bytes(7, tmp_path)
