"""``innkeeper config show NAME``: what a name of a registry file resolves to, each value with the level it comes from."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET

from engines.scheduling.settings import SchedulingSettings
from engines.wire import Sampling
from gateway.cli.output import print_fields, print_json, print_table
from gateway.cli.serve import find_registry
from gateway.registry.catalog import Catalog, ResolvedModel
from gateway.registry.load import load_registry
from gateway.registry.request_layers import SAMPLING, Setting
from gateway.registry.schema import ModelEntry

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]

_BUILT_IN = "built in"
_SHOWN = 60  # characters of a value; JSON has all


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``show``."""
    parser = subparsers.add_parser(
        "show",
        help="show what a name resolves to, and where each value comes from",
        description="Shows the request settings, the policy and the scheduling of a model as a request for this name would"
        " get them, each with the level of the registry that it comes from.",
    )
    parser.add_argument("name", metavar="NAME", help="an id or alias, with or without @profile")
    parser.add_argument("--registry", metavar="FILE", type=Path, help="the registry (default: ./registry.yaml)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints it. Raises CliError, RegistryError, or ModelNotFound, which lists the names there are."""
    catalog = Catalog(load_registry(find_registry(args.registry)))
    model = catalog.resolve(args.name)
    settings = [*_request_settings(catalog, args.name), *_policy(catalog, model), *_scheduling(catalog, model)]
    error = None if model.error is None else model.error.message
    if args.json:
        values = [{"key": found.key, "value": found.value, "origin": found.origin} for found in settings]
        head = {"id": model.id, "profile": model.profile, "profiles": list(model.profiles), "error": error}
        print_json({**head, "settings": values})
        return 0
    fields = [
        ("id", model.id),
        ("profile", model.profile or ""),
        ("profiles", ", ".join(model.profiles)),
        ("unusable", error or ""),
    ]
    print_fields([(name, value) for name, value in fields if value])
    print()
    print_table(["setting", "value", "origin"], [[found.key, _shown(found.value), found.origin] for found in settings])
    return 0


def _request_settings(catalog: Catalog, name: str) -> Iterator[Setting]:
    """What the levels say, and in place of sampling that none does what is built in."""
    found = {setting.key: setting for setting in catalog.explain(name)}
    for field, fallback in zip(Sampling.__struct_fields__, Sampling.__struct_defaults__, strict=True):
        key = SAMPLING + field
        if key in found:
            yield found.pop(key)
        elif isinstance(fallback, int | float):
            yield Setting(key, fallback, _BUILT_IN)
    yield from found.values()


def _policy(catalog: Catalog, model: ResolvedModel) -> Iterator[Setting]:
    registry, entry = catalog.registry, _entry(catalog, model)
    for name in model.policy.__struct_fields__:
        below = "defaults" if name in registry.defaults_given else _BUILT_IN
        yield Setting(name, getattr(model.policy, name), below if getattr(entry, name) is UNSET else "model")


def _scheduling(catalog: Catalog, model: ResolvedModel) -> Iterator[Setting]:
    own, below = _entry(catalog, model).scheduling.given, catalog.registry.scheduling.given
    for name in SchedulingSettings.__struct_fields__:
        origin = "model" if name in own else "defaults" if name in below else _BUILT_IN
        yield Setting(f"scheduling.{name}", getattr(model.spec.scheduling, name), origin)


def _entry(catalog: Catalog, model: ResolvedModel) -> ModelEntry:
    """As the file has it."""
    return next(entry for entry in catalog.registry.models if entry.id == model.id)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
