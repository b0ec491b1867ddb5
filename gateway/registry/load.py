"""Reads a registry file: YAML → checked :class:`Registry`, or a :class:`RegistryError` that names the key path.

An unknown key is an error that names its path and the nearest known key; a wrong value one that gives the value and what
is allowed. Nothing of a file with an error in it is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gateway.machine import Machine, read_machine
from gateway.registry.problems import Problem, RegistryError, shorten
from gateway.registry.schema import MemorySection, ModelEntry, Policy, RegistryFile, SchedulingSection, ServerSection
from gateway.registry.settings_book import SettingsBook, read_settings
from gateway.registry.shape import ShapeError, read_shape
from gateway.registry.values import Percentage, ValueProblem, format_bytes, parse_budget
from gateway.registry.yaml_reader import read_yaml
from gateway.settings import (
    ApiKey,
    MemorySettings,
    ResponsesSettings,
    ServerSettings,
    Settings,
    WorkerSettings,
)

__all__ = ["Registry", "RegistryError", "load_registry", "parse_registry", "single_model_registry"]

_MAX_FILE_BYTES = 4 * 1024**2


@dataclass(frozen=True)
class Registry:
    """A checked registry.

    ``models`` are as the file has them. ``directory`` is what relative sources are relative to; ``scheduling`` is that of the
    file's ``defaults``, ``requests`` are the request settings, ``defaults_given`` the keys that stand in ``defaults``.
    """

    path: Path | None  # None: made from --model
    directory: Path
    machine: Machine
    settings: Settings
    models: tuple[ModelEntry, ...]
    defaults: Policy
    requests: SettingsBook = field(default_factory=SettingsBook)
    defaults_given: frozenset[str] = frozenset()
    scheduling: SchedulingSection = field(default_factory=SchedulingSection)


def load_registry(path: str | Path, *, machine: Machine | None = None) -> Registry:
    """The registry in this file, checked. ``machine`` is read now unless it is given."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)  # no more of what has no end, as a device
        if len(content) > _MAX_FILE_BYTES:
            raise RegistryError(f"{path}: larger than {format_bytes(_MAX_FILE_BYTES)}, so not a registry file")
        text = content.decode("utf-8")
    except OSError as error:
        raise RegistryError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RegistryError(f"{path}: not UTF-8 at byte {error.start}") from error
    return parse_registry(text, path, machine=machine)


def parse_registry(text: str, path: Path, *, machine: Machine | None = None) -> Registry:
    """As :func:`load_registry`, from the file's text."""
    try:
        data = read_yaml(text)
    except yaml.YAMLError as error:
        said = " ".join(str(error).split()).replace(' in "<unicode string>", line', " at line")
        raise RegistryError(f"{path}: not valid YAML: {said}") from error
    except RecursionError as error:
        raise RegistryError(f"{path}: nested too deeply") from error
    machine = machine or read_machine()
    directory = path.resolve().parent
    try:
        file = read_shape(data)
    except ShapeError as error:
        raise _registry_error(path, error.problems) from error
    problems = list(_model_problems(file))
    requests = read_settings(file, directory, problems)
    memory = _memory(file, machine, problems)
    if problems:
        raise _registry_error(path, problems)
    settings = Settings(
        memory=memory,
        server=_server(file.server),
        workers=WorkerSettings(**{name: getattr(file.workers, name) for name in file.workers.__struct_fields__}),
    )
    given = frozenset((data or {}).get("defaults", {}))
    return Registry(
        path, directory, machine, settings, file.models, file.defaults.policy, requests, given, file.defaults.scheduling
    )


def single_model_registry(model: str | Path, *, machine: Machine | None = None) -> Registry:
    """The registry of ``serve --model FILE``: one model, whose id is the file's stem, and defaults for the rest."""
    path = Path(model)
    if not path.exists():
        raise RegistryError(f"{path}: no such file")
    stem = re.sub(r"-00001-of-\d{5}$", "", path.stem if path.is_file() else path.name)
    model_id = re.sub(r"[^A-Za-z0-9._:-]+", "-", stem).strip("-") or "model"
    entry = ModelEntry(id=model_id, source=str(path.resolve()))
    file = RegistryFile(models=(entry,))
    machine = machine or read_machine()
    settings = Settings(memory=_memory(file, machine, []))
    return Registry(None, path.resolve().parent, machine, settings, file.models, file.defaults.policy)


def _registry_error(path: Path, problems: Sequence[Problem]) -> RegistryError:
    first, *others = problems
    more = f" (and {len(others)} more: `innkeeper config check` lists them)" if others else ""
    return RegistryError(f"{path}: {first}{more}", key=first.key, problems=problems)


def _model_problems(file: RegistryFile) -> Iterator[Problem]:
    """What no key of a model can say alone."""
    taken: dict[str, str] = {}
    for index, model in enumerate(file.models):
        path = f"models[{index}]"
        names = [(f"{path}.id", model.id), *((f"{path}.aliases[{i}]", a) for i, a in enumerate(model.aliases))]
        for where, name in names:
            if name in taken:
                yield Problem(where, f"{name!r} is taken by {taken[name]}; ids and aliases share one namespace")
            taken[name] = where
        simulated = model.source.startswith("sim:")
        if simulated and model.source != "sim:":
            yield Problem(f"{path}.source", f"a simulated model's source is exactly 'sim:' (found {model.source!r})")
        if simulated and model.simulate is None:
            yield Problem(f"{path}.simulate", "a 'sim:' model needs it, at least {weights: 4GiB}")
        if not simulated and model.simulate is not None:
            yield Problem(f"{path}.simulate", "only a model with source 'sim:' is simulated")
        if simulated and model.task is not None and model.simulate is not None and model.task != model.simulate.task:
            yield Problem(f"{path}.task", f"contradicts {path}.simulate.task ({model.simulate.task})")


def _memory(file: RegistryFile, machine: Machine, problems: list[Problem]) -> MemorySettings:
    """The section against the machine; what is wrong with it joins ``problems``."""
    section: MemorySection = file.memory
    if section.device is not None:
        real = [model.id for model in file.models if model.simulate is None]
        if real:
            message = f"rehearses a device and needs every model to be simulated; {real[0]!r} is real"
            problems.append(Problem("memory.device", message))
        available = int(section.device)
        automatic = int(0.9 * available)
        name = "memory.device"
    else:
        available = machine.device_bytes
        automatic = machine.auto_budget_bytes
        name = f"this machine's {machine.device} memory"
    warnings: tuple[str, ...] = ()
    try:
        wanted = parse_budget(section.budget)
    except ValueProblem as problem:
        problems.append(Problem("memory.budget", f"{problem} (found {shorten(section.budget)})"))
        wanted = None
    match wanted:
        case None:
            budget = automatic
        case Percentage() as percent:
            budget = int(available * percent / 100)
        case size:
            budget = int(size)
            if budget > available:
                budget = available
                warnings = (
                    f"memory.budget: {format_bytes(int(size))} is more than {name} can give; "
                    f"clamped to {format_bytes(available)}",
                )
    device = None if section.device is None else int(section.device)
    return MemorySettings(budget_bytes=budget, device_bytes=device, policy=section.policy, warnings=warnings)


def _server(section: ServerSection) -> ServerSettings:
    keys = tuple(
        ApiKey(entry) if isinstance(entry, str) else ApiKey(entry.key, frozenset(entry.scopes), entry.concurrency)
        for entry in section.api_keys
    )
    fields = ("host", "port", "allowed_hosts", "cors_origins", "shutdown_grace_s", "keepalive_s", "client_stall_s")
    limits: dict[str, Any] = {}
    if section.max_body is not None:
        limits = {"max_body_bytes": int(section.max_body), "max_audio_body_bytes": int(section.max_body)}
    return ServerSettings(
        api_keys=keys,
        max_inputs=section.max_inputs,
        max_chars=section.max_chars,
        responses=ResponsesSettings(
            section.responses.max_count, int(section.responses.max_bytes), section.responses.max_age_s
        ),
        **limits,
        **{name: getattr(section, name) for name in fields},
    )
