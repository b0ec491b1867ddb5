"""Compiled kernels on disk."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import engines
from engines.gguf.kernels.cuda.image_store import ImageStore, write_whole
from engines.gguf.kernels.cuda.nvrtc import Compiled

KERNEL = Compiled("_Z6kernelPi", b"\x7fELF\0image" * 100)


WRITER = """
import sys
from pathlib import Path
from engines.gguf.kernels.cuda.image_store import ImageStore
from engines.gguf.kernels.cuda.nvrtc import Compiled
store, image = ImageStore(Path(sys.argv[1])), sys.argv[2].encode() * 200_000
for _ in range(50):
    store.put("shared", Compiled("kernel", image))
    held = store.get("shared")
    assert held is not None and held.image == held.image[:1] * 200_000
"""


def test_what_was_put_is_there_for_another_store(tmp_path: Path) -> None:
    ImageStore(tmp_path / "made" / "here").put("key", KERNEL)
    assert ImageStore(tmp_path / "made" / "here").get("key") == KERNEL
    assert ImageStore(tmp_path / "made" / "here").get("other") is None


@pytest.mark.parametrize("damage", ["truncated", "changed", "longer", "empty", "foreign"])
def test_a_damaged_file_is_not_taken_and_made_anew(damage: str, tmp_path: Path) -> None:
    store, path = ImageStore(tmp_path), tmp_path / "key"
    store.put("key", KERNEL)
    held = path.read_bytes()
    damaged = {
        "truncated": held[:-1],
        "changed": held[:-3] + b"?" + held[-2:],
        "longer": held + b"x",
        "empty": b"",
        "foreign": b"something else altogether",
    }
    path.write_bytes(damaged[damage])
    assert store.get("key") is None
    assert not path.exists()
    store.put("key", KERNEL)
    assert store.get("key") == KERNEL


@pytest.mark.parametrize("kind", ["pipe", "folder", "endless", "too large", "nowhere", "itself", "symbol"])
def test_what_is_no_stored_kernel_is_passed_over_at_once(kind: str, tmp_path: Path) -> None:
    store, path = ImageStore(tmp_path, limit_bytes=5000), tmp_path / "key"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "too large":
        with path.open("wb") as file:
            file.truncate(1 << 32)
    elif kind == "symbol":
        rest = b"\xff\0image"
        path.write_bytes(b"innkeeper kernel 1\n" + hashlib.sha256(rest).digest() + rest)
    else:
        path.symlink_to({"endless": Path("/dev/zero"), "nowhere": tmp_path / "gone", "itself": path}[kind])
    assert store.get("key") is None
    store.put("key", KERNEL)
    assert store.get("key") == (None if kind == "folder" else KERNEL)


def test_processes_that_write_at_once_leave_whole_files(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", WRITER, str(tmp_path)]
    root = Path(engines.__file__).parents[1]
    writers = [subprocess.Popen([*command, letter], cwd=root, stderr=subprocess.PIPE, text=True) for letter in "abc"]
    for writer in writers:
        said = writer.communicate(timeout=60)[1]
        assert writer.returncode == 0, said
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]


def test_a_full_store_drops_what_was_used_longest_ago(tmp_path: Path) -> None:
    store = ImageStore(tmp_path, limit_bytes=3500)
    for age, key in ((400, "a"), (300, "b"), (200, "c")):
        store.put(key, Compiled("k", bytes(1000)))
        os.utime(tmp_path / key, (1_000_000 - age, 1_000_000 - age))
    assert store.get("a") is not None  # used: no longer the oldest
    store.put("d", Compiled("k", bytes(1000)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c", "d"]


def test_a_clock_that_was_set_back_does_not_keep_old_files_for_new_ones(tmp_path: Path) -> None:
    store = ImageStore(tmp_path, limit_bytes=3500)
    ahead = time.time() + 1e6
    for key in ("a", "b", "c", "left.part"):
        (tmp_path / key).write_bytes(bytes(1000))
        os.utime(tmp_path / key, (ahead, ahead))
    for key in ("d", "e"):
        store.put(key, Compiled("k", bytes(1000)))
    names = {path.name for path in tmp_path.iterdir()}
    assert {"d", "e"} <= names and "left.part" not in names


def test_parts_that_a_killed_process_left_are_swept_and_those_being_written_are_not(tmp_path: Path) -> None:
    for name in ("old.part", "new.part"):
        (tmp_path / name).write_bytes(b"half")
    os.utime(tmp_path / "old.part", (1_000_000, 1_000_000))
    ImageStore(tmp_path).put("key", KERNEL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "new.part"]


def test_a_folder_that_cannot_be_written_keeps_nothing_and_raises_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = ImageStore(tmp_path / "file" / "folder")
    store.put("key", KERNEL)
    assert store.get("key") is None


def test_a_full_disk_leaves_no_part_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert not write_whole(tmp_path / "key", b"content")
    assert not list(tmp_path.iterdir())
