"""From a ``source`` in the registry to files on this machine. Nothing is ever downloaded.

=========================== ================================================================================
source                      where it is looked up
=========================== ================================================================================
``PATH``                    relative to the registry file; ``~`` is the home directory
``package:MODULE/FILE``     inside an installed Python package (``package_source.py``)
``hf:ORG/REPO@REV/FILE``    Hugging Face's local cache: ``$HF_HUB_CACHE``, ``$HF_HOME/hub``, ``~/.cache/huggingface/hub``
``sim:``                    nowhere: simulated
=========================== ================================================================================
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from gateway.errors import GatewayError, ModelLoadFailed, ModelNotAcquired
from gateway.registry.package_source import PackageSourceError, resolve_package_source

__all__ = ["resolve_source"]

_HF = re.compile(r"(?P<org>[\w.-]+)/(?P<repo>[\w.-]+)(?:@(?P<rev>[\w.-]+))?(?:/(?P<file>.+))?")


def resolve_source(source: str, directory: Path) -> Path:
    """The file or directory. A :class:`GatewayError` says what is missing and what to do."""
    if source.startswith("package:"):
        try:
            return resolve_package_source(source.removeprefix("package:"))
        except PackageSourceError as problem:
            raise ModelLoadFailed(str(problem)) from problem
        except OSError as error:
            message = f"{source}: cannot be assembled: {error}; make room, or name another place with XDG_CACHE_HOME"
            raise ModelLoadFailed(message) from error
    if source.startswith("hf:"):
        return _resolve_hub(source)
    if "://" in source:
        raise ModelLoadFailed(
            f"{source[:200]}: Innkeeper downloads nothing; fetch the file, and give its path as 'source'"
        )
    try:
        path = directory / Path(source).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError) as error:  # a name too long; a user who is not known
        raise ModelLoadFailed(f"{source[:200]}: not a path: {_reason(error)}; mend 'source' in the registry") from error
    if not exists:
        raise ModelLoadFailed(f"{path}: no such file; mend 'source' in the registry or put the file there")
    return path


def _reason(error: OSError | RuntimeError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _resolve_hub(source: str) -> Path:
    match = _HF.fullmatch(source.removeprefix("hf:"))
    if match is None or ".." in Path(match["file"] or "").parts:
        raise ModelLoadFailed(f"{source}: should read hf:ORG/REPO@REVISION/FILE")
    root = _hub_cache() / f"models--{match['org']}--{match['repo']}"
    revision = match["rev"] or "main"
    path = root / "snapshots" / _commit(root, revision) / (match["file"] or "")
    if not path.exists():
        command = f"hf download {match['org']}/{match['repo']} {match['file'] or ''} --revision {revision}"
        raise _not_acquired(source, " ".join(command.split()))
    return path


def _commit(root: Path, revision: str) -> str:
    reference = root / "refs" / revision
    try:
        return reference.read_text().strip() if reference.is_file() else revision
    except OSError:
        return revision


def _hub_cache() -> Path:
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    home = os.environ.get("HF_HOME")
    return (Path(home).expanduser() if home else Path.home() / ".cache" / "huggingface") / "hub"


def _not_acquired(source: str, command: str) -> GatewayError:
    return ModelNotAcquired(
        f"{source} is not on this machine, and a request never downloads: {command}", retry_after_s=60
    )
