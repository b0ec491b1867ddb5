"""Reads a registry file: YAML → checked :class:`Registry`, or a :class:`RegistryError` that names the key path.

An unknown key is an error that names its path and the nearest known key; a wrong value one that gives the value and what
is allowed. Nothing of a file with an error in it is used.
"""

from __future__ import annotations

import difflib
import math
import re
import reprlib
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from gateway.machine import Machine, read_machine
from gateway.registry.schema import NOT_BUILT, MemorySection, ModelEntry, Policy, RegistryFile, ServerSection
from gateway.registry.values import ByteSize, Percentage, ValueProblem, format_bytes, parse_budget, parse_bytes
from gateway.settings import ApiKey, MemorySettings, ServerSettings, Settings, WorkerSettings

__all__ = ["Registry", "RegistryError", "load_registry", "parse_registry", "single_model_registry"]

Value = TypeVar("Value")

_MAX_FILE_BYTES = 4 * 1024**2


class RegistryError(Exception):
    """The registry cannot be used. The message starts with the file and the key path; ``key`` is that path, where one is."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True)
class Registry:
    """A checked registry. ``directory`` is what relative sources are relative to."""

    path: Path | None  # None: made from --model
    directory: Path
    machine: Machine
    settings: Settings
    models: tuple[ModelEntry, ...]
    defaults: Policy


def load_registry(path: str | Path, *, machine: Machine | None = None) -> Registry:
    """The registry in this file, checked. ``machine`` is read now unless it is given."""
    path = Path(path)
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise RegistryError(f"{path}: larger than {format_bytes(_MAX_FILE_BYTES)}, so not a registry file")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RegistryError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RegistryError(f"{path}: not UTF-8 at byte {error.start}") from error
    return parse_registry(text, path, machine=machine)


def parse_registry(text: str, path: Path, *, machine: Machine | None = None) -> Registry:
    """As :func:`load_registry`, from the file's text."""
    try:
        data = yaml.load(text, _StrictLoader)
    except yaml.YAMLError as error:
        raise RegistryError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise RegistryError(f"{path}: nested too deeply") from error
    machine = machine or read_machine()
    try:
        file = _convert(data)
        _check_models(file)
        memory = _memory(file, machine)
    except _Problem as problem:
        key = _KEY_PATH.match(str(problem))
        raise RegistryError(f"{path}: {problem}", key=key and key[1]) from problem
    settings = Settings(
        memory=memory,
        server=_server(file.server),
        workers=WorkerSettings(**{name: getattr(file.workers, name) for name in file.workers.__struct_fields__}),
    )
    return Registry(path, path.resolve().parent, machine, settings, file.models, file.defaults)


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
    settings = Settings(memory=_memory(file, machine))
    return Registry(None, path.resolve().parent, machine, settings, file.models, file.defaults)


# --- YAML -----------------------------------------------------------------------------------------------------------


class _StrictLoader(yaml.SafeLoader):
    """YAML without repeated keys: the plain loader lets the last one win in silence. Values that are not of their tag's kind
    (``!!int x``, the date 2024-13-45) are YAML errors like others.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (
            ValueError,
            AttributeError,
            LookupError,
            ArithmeticError,
        ) as error:  # whatever the tag's constructor raises
            kind = node.tag.rpartition(":")[2]
            problem = f"{_shorten(node.value)} cannot be read as {kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    seen: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not text", key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is there twice", key_node.start_mark)
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


# --- shape ----------------------------------------------------------------------------------------------------------


class _Problem(Exception):
    """Key path and what is wrong there."""


_KEY_PATH = re.compile(r"([^\s:]+): ")


def _convert(data: object) -> RegistryFile:
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise _Problem("a registry file is a mapping with keys such as models and server")
    _check_keys(data, RegistryFile, "", "")
    prepared = _prepare(data, RegistryFile, "")
    try:
        return msgspec.convert(prepared, RegistryFile)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        path = where.rstrip("`").lstrip(".")
        value = _look_up(data, path)
        hidden = value is _MISSING or "api_keys" in path  # an error must not print a key
        shown = "" if hidden else f" (found {_shorten(value)})"
        raise _Problem(f"{path or 'the file'}: {message[:1].lower()}{message[1:]}{shown}") from error


def _check_keys(data: object, kind: type[msgspec.Struct], path: str, section: str) -> None:
    """Refuses unknown keys, here and in the sections below."""
    if not isinstance(data, dict):
        return  # convert() says what should be here
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in data.items():
        where = f"{path}.{key}" if path else str(key)
        if key in NOT_BUILT.get(section, frozenset()):
            raise _Problem(f"{where}: not supported by this version of Innkeeper; leave it out")
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; known keys: {', '.join(fields)}"
            raise _Problem(f"{where}: unknown key{hint}")
        for inner, many in _structs_in(fields[key]):
            below = f"{section}.{key}" if section else str(key)
            if many and isinstance(value, list):
                for index, item in enumerate(value):
                    _check_keys(item, inner, f"{where}[{index}]", f"{below}[]")
            elif not many:
                _check_keys(value, inner, where, below)


def _structs_in(annotation: Any) -> list[tuple[type[msgspec.Struct], bool]]:
    """The Structs an annotation holds, each with whether it stands in a list."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return [(annotation, False)]
    many = typing.get_origin(annotation) is tuple
    return [(struct, many or inner) for part in typing.get_args(annotation) for struct, inner in _structs_in(part)]


def _prepare(data: Any, kind: type[msgspec.Struct], path: str) -> Any:
    """The same mapping with sizes and budgets read, which msgspec has no type for."""
    if not isinstance(data, dict):
        return data
    out: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.name not in data:
            continue
        value, where = data[field.name], f"{path}.{field.name}" if path else field.name
        if isinstance(value, float) and not math.isfinite(value):
            raise _Problem(f"{where}: expected a finite number (found {value})")
        parts = {field.type, *typing.get_args(field.type)}
        if ByteSize in parts and not (value is None and type(None) in parts):
            value = _read(parse_bytes, value, where)
        for inner, many in _structs_in(field.type):
            if many and isinstance(value, list):
                value = [_prepare(item, inner, f"{where}[{i}]") for i, item in enumerate(value)]
            elif not many:
                value = _prepare(value, inner, where)
        out[field.name] = value
    return out


def _read(parse: Callable[[object], Value], value: object, where: str) -> Value:
    try:
        return parse(value)
    except ValueProblem as problem:
        raise _Problem(f"{where}: {problem} (found {_shorten(value)})") from problem


_MISSING = object()


def _look_up(data: Any, path: str) -> Any:
    for key in re.findall(r"[^.\[\]]+", path):
        try:
            data = data[int(key)] if isinstance(data, list) else data[key]
        except (KeyError, IndexError, ValueError, TypeError):
            return _MISSING
    return data


_repr = reprlib.Repr()  # bounded in depth and breadth: a few aliases make a value whose repr() would take for ever
_repr.maxstring = _repr.maxother = _repr.maxlong = 60


def _shorten(value: object) -> str:
    shown = _repr.repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


# --- what one key alone cannot say ------------------------------------------------------------------------------------


def _check_models(file: RegistryFile) -> None:
    taken: dict[str, str] = {}
    for index, model in enumerate(file.models):
        path = f"models[{index}]"
        names = [(f"{path}.id", model.id), *((f"{path}.aliases[{i}]", a) for i, a in enumerate(model.aliases))]
        for where, name in names:
            if name in taken:
                raise _Problem(f"{where}: {name!r} is taken by {taken[name]}; ids and aliases share one namespace")
            taken[name] = where
        simulated = model.source.startswith("sim:")
        if simulated and model.source != "sim:":
            raise _Problem(f"{path}.source: a simulated model's source is exactly 'sim:' (found {model.source!r})")
        if simulated and model.simulate is None:
            raise _Problem(f"{path}.simulate: a 'sim:' model needs it, at least {{weights: 4GiB}}")
        if not simulated and model.simulate is not None:
            raise _Problem(f"{path}.simulate: only a model with source 'sim:' is simulated")
        if simulated and model.task is not None and model.simulate is not None and model.task != model.simulate.task:
            raise _Problem(f"{path}.task: contradicts {path}.simulate.task ({model.simulate.task})")


def _memory(file: RegistryFile, machine: Machine) -> MemorySettings:
    section: MemorySection = file.memory
    if section.device is not None:
        real = [model.id for model in file.models if model.simulate is None]
        if real:
            raise _Problem(
                f"memory.device: rehearses a device and needs every model to be simulated; {real[0]!r} is real"
            )
        available = int(section.device)
        automatic = int(0.9 * available)
        name = "memory.device"
    else:
        available = machine.device_bytes
        automatic = machine.auto_budget_bytes
        name = f"this machine's {machine.device} memory"
    warnings: tuple[str, ...] = ()
    match _read(parse_budget, section.budget, "memory.budget"):
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
        **limits,
        **{name: getattr(section, name) for name in fields},
    )
