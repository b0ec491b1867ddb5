"""``innkeeper doctor``: what is in order here and what is not, each with what to do.

One function a check; :data:`CHECKS` is their order. MLX is looked at from a process of its own: it may be broken, and commands
never import it.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import httpx

from gateway.cli.output import CliError, print_json, print_table
from gateway.cli.serve import find_registry, port_number
from gateway.errors import ModelNotAcquired
from gateway.machine import read_machine
from gateway.paths import cache_directory, state_directory
from gateway.registry.catalog import Catalog
from gateway.registry.load import Registry, RegistryError, load_registry
from gateway.registry.values import format_bytes
from gateway.settings import ServerSettings

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["CHECKS", "Finding", "Subject", "add_parser", "run"]

Status = Literal["ok", "warn", "fail"]

_PYTHONS = ((3, 11), (3, 13))
_PROBE_S = 60.0
_HTTP_S = 2.0
_LOW_DISK_BYTES = 1 << 30


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``remedy`` is empty where nothing is to be done."""

    status: Status
    check: str
    detail: str
    remedy: str = ""


@dataclass
class Subject:
    """What is examined. ``registry`` is None when there is none, or none that can be read."""

    server: ServerSettings
    registry: Registry | None = None
    registry_finding: Finding | None = None


Check = Callable[[Subject], Iterator[Finding]]


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``doctor``."""
    parser = subparsers.add_parser(
        "doctor",
        help="check this installation",
        description="Checks Python, MLX and its kernels, the registry and its models, the port, cores, memory and disk."
        " Each line is ok, warn or fail, with what to do. Exits with 1 when anything fails.",
    )
    parser.add_argument("--registry", metavar="FILE", type=Path, help="the registry (default: ./registry.yaml)")
    parser.add_argument("--port", type=port_number, help="the port to look at, instead of the registry's")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the report; 1 when a check failed."""
    subject = _subject(args.registry)
    if args.port is not None:
        subject.server = replace(subject.server, port=args.port)
    findings = [finding for check in CHECKS for finding in check(subject)]
    if args.json:
        print_json([vars(finding) for finding in findings])
    else:
        rows = [[f.status, f.check, f"{f.detail}: {f.remedy}" if f.remedy else f.detail] for f in findings]
        print_table(["", "check", "finding"], rows)
    return 1 if any(finding.status == "fail" for finding in findings) else 0


def _subject(named: Path | None) -> Subject:
    defaults = ServerSettings()
    try:
        path = find_registry(named)
    except CliError as error:
        return Subject(defaults, registry_finding=Finding("warn", "registry", str(error)))
    try:
        registry = load_registry(path)
    except RegistryError as error:
        return Subject(defaults, registry_finding=Finding("fail", "registry", str(error), "mend the file"))
    return Subject(registry.settings.server, registry)


# --- the checks -----------------------------------------------------------------------------------------------------


def check_python(_subject: Subject) -> Iterator[Finding]:
    """A version that is supported, on a platform MLX runs on."""
    version = platform.python_version()
    if not _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]:
        yield Finding("fail", "python", f"Python {version}", "install Python 3.11, 3.12 or 3.13 and run `make install`")
        return
    machine = f"{platform.system()} {platform.machine()}"
    if sys.platform == "darwin" and platform.machine() != "arm64":
        yield Finding(
            "fail", "python", f"Python {version} on {machine}", "MLX needs Apple silicon, and an arm64 Python"
        )
        return
    yield Finding("ok", "python", f"Python {version} on {machine}")


def check_backend(_subject: Subject) -> Iterator[Finding]:
    """MLX can be imported, and has exactly one back end."""
    output, problem = _probe(["-m", "engines.device"])
    try:
        facts = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        yield Finding("fail", "mlx", f"MLX cannot be started: {problem or output[-300:]}", "run `make install`")
        return
    if "error" in facts:
        yield Finding("fail", "mlx", facts["error"])
        return
    size = f", {format_bytes(facts['total_bytes'])}" if facts["total_bytes"] else ""
    yield Finding("ok", "mlx", f"MLX {facts['mlx_version']} on {facts['kind']} ({facts['name']}{size})")
    yield from _check_kernels()


def _check_kernels() -> Iterator[Finding]:
    output, problem = _probe(["-m", "engines.gguf.kernels"])
    try:
        facts = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        yield Finding(
            "fail", "kernels", f"the kernels cannot be loaded: {problem or output[-300:]}", "run `make install`"
        )
        return
    name = f"{facts['backend']} ({facts['variant']})" if facts["variant"] else facts["backend"]
    if facts["reason"] is None:
        yield Finding("ok", "kernels", name)
    else:
        yield Finding("warn", "kernels", f"{name}: {facts['reason']}", facts["remedy"] or "")


def check_registry(subject: Subject) -> Iterator[Finding]:
    """The file is valid, and each model's files can be used and fit the budget."""
    if subject.registry is None:
        if subject.registry_finding is not None:
            yield subject.registry_finding
        return
    memory = subject.registry.settings.memory
    models = Catalog(subject.registry).models
    yield Finding("ok", "registry", f"{subject.registry.path}: {len(models)} models")
    for warning in memory.warnings:
        yield Finding("warn", "registry", warning)
    for model in models:
        check, weights = f"model {model.id}", model.footprint.static_bytes
        if model.error is not None:
            yield Finding("warn" if isinstance(model.error, ModelNotAcquired) else "fail", check, model.error.message)
        elif weights > memory.budget_bytes:
            needs = f"needs {format_bytes(weights)}, the budget is {format_bytes(memory.budget_bytes)}"
            yield Finding("fail", check, needs, "raise memory.budget, or choose a smaller file")
        else:
            yield Finding("ok", check, f"{model.task}, {format_bytes(weights)}")


def check_port(subject: Subject) -> Iterator[Finding]:
    """The address can be bound, or a gateway is already there."""
    from gateway.server import StartError, check_bind, open_socket

    where = f"{subject.server.host}:{subject.server.port}"
    try:
        check_bind(subject.server)
        open_socket(subject.server).close()
    except StartError as error:
        if _gateway_answers(subject.server):
            yield Finding("ok", "port", f"a gateway answers at {where}")
        else:
            yield Finding("fail", "port", str(error))
        return
    yield Finding("ok", "port", f"{where} is free")


def check_machine(subject: Subject) -> Iterator[Finding]:
    """Cores and memory."""
    machine = read_machine()
    if machine.cores < 2:
        yield Finding(
            "warn", "cores", "1 core", "give the machine or container at least 2, so that decoding leaves one free"
        )
    else:
        yield Finding("ok", "cores", f"{machine.cores} cores")
    budget = machine.auto_budget_bytes if subject.registry is None else subject.registry.settings.memory.budget_bytes
    memory = f"{format_bytes(machine.device_bytes)} on {machine.device}, {format_bytes(budget)} of it for models"
    yield Finding("ok", "memory", memory)


def check_disk(_subject: Subject) -> Iterator[Finding]:
    """The cache and state directories can be written to, and have room."""
    for check, directory in (("cache", cache_directory()), ("state", state_directory())):
        existing = next(parent for parent in (directory, *directory.parents) if parent.exists())
        probe = existing / f".innkeeper-doctor-{platform.node()}"
        try:
            probe.touch()
            probe.unlink()
        except OSError as error:
            remedy = f"make it writable, or set {'XDG_CACHE_HOME' if check == 'cache' else 'XDG_STATE_HOME'}"
            yield Finding("fail", check, f"{directory} cannot be written to ({error.strerror})", remedy)
            continue
        free = shutil.disk_usage(existing).free
        if free < _LOW_DISK_BYTES:
            yield Finding("warn", check, f"{directory} has {format_bytes(free)} free", "make room")
        else:
            yield Finding("ok", check, f"{directory}, {format_bytes(free)} free")


CHECKS: tuple[Check, ...] = (check_python, check_backend, check_registry, check_port, check_machine, check_disk)


def _probe(arguments: list[str]) -> tuple[str, str]:
    """Standard output of a Python process, and the last line of its standard error (or why it did not end)."""
    try:
        result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=_PROBE_S)
    except subprocess.TimeoutExpired:
        return "", f"no answer in {_PROBE_S:.0f} s"
    return result.stdout, next(iter(result.stderr.strip().splitlines()[::-1]), f"exit status {result.returncode}")


def _gateway_answers(server: ServerSettings) -> bool:
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(server.host, server.host)
    try:
        response = httpx.get(f"http://{host}:{server.port}/health", timeout=_HTTP_S, trust_env=False)
        return response.is_success and response.json().get("status") == "ok"
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, AttributeError):
        return False
