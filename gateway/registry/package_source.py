"""``package:MODULE/FILE`` sources: model files that ship inside Python packages.

The package is found by ``importlib.util.find_spec`` and never imported. Where ``FILE`` is not in it but packages
``MODULE_part1``, ``MODULE_part2``, … hold ``data/FILE.part00``, ``data/FILE.part01``, …, those parts are joined once into
the cache directory and checked against ``MODULE/data/SHA256SUMS``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from pathlib import Path

from gateway.paths import cache_directory

__all__ = ["PackageSourceError", "resolve_package_source"]

_BLOCK_BYTES = 1 << 20


class PackageSourceError(Exception):
    """The package or the file in it is missing or damaged; the message says what to do."""


def resolve_package_source(reference: str) -> Path:
    """The file or directory that ``MODULE/path`` names, joined from its parts where need be."""
    module, _, inside = reference.partition("/")
    if not module.isidentifier() or not inside:
        raise PackageSourceError(f"package:{reference} should read package:MODULE/FILE")
    root = _package_directory(module)
    if root is None:
        raise PackageSourceError(
            f"the Python package {module} is not installed: pip install --no-deps {module.replace('_', '-')}"
        )
    path = root / inside
    if not path.resolve().is_relative_to(root.resolve()):
        raise PackageSourceError(f"package:{reference} leads out of the package")
    if path.exists():
        return path
    parts = _find_parts(module, Path(inside).name)
    if not parts:
        raise PackageSourceError(f"the Python package {module} has no file {inside}")
    return _assemble(module, root, Path(inside).name, parts)


def _package_directory(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # of modules that are not what they seem, such as __main__
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _find_parts(module: str, name: str) -> list[Path]:
    parts: list[Path] = []
    while (root := _package_directory(f"{module}_part{len(parts) + 1}")) is not None:
        part = root / "data" / f"{name}.part{len(parts):02d}"
        if not part.is_file():
            raise PackageSourceError(f"{part} is missing: reinstall {module.replace('_', '-')}-part{len(parts) + 1}")
        parts.append(part)
    return parts


def _assemble(module: str, root: Path, name: str, parts: list[Path]) -> Path:
    target = cache_directory() / "packages" / module / name
    if target.is_file() and target.stat().st_size == sum(part.stat().st_size for part in parts):
        return target  # written whole or not at all: see the rename below
    target.parent.mkdir(parents=True, exist_ok=True)
    expected = _expected_digest(root / "data" / "SHA256SUMS", name)
    digest = hashlib.sha256()
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=name, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as out:
            for part in parts:
                with part.open("rb") as source:
                    while block := source.read(_BLOCK_BYTES):
                        digest.update(block)
                        out.write(block)
        if expected is not None and digest.hexdigest() != expected:
            raise PackageSourceError(f"{name} does not match its SHA256SUMS: reinstall {module.replace('_', '-')}")
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


def _expected_digest(sums: Path, name: str) -> str | None:
    if not sums.is_file():
        return None
    for line in sums.read_text().splitlines():
        digest, _, listed = line.partition(" ")
        if listed.strip().lstrip("*") == name:
            return digest
    return None
