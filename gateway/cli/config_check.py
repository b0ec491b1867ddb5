"""``innkeeper config check``: everything that is wrong with a registry file and the files it names."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.output import print_json, printable
from gateway.cli.serve import find_registry
from gateway.registry.catalog import Catalog
from gateway.registry.family_defaults import unused_family_values
from gateway.registry.load import Registry, load_registry
from gateway.registry.problems import Problem, RegistryError, shorten
from gateway.registry.values import format_bytes

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#]+")


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``check``."""
    parser = subparsers.add_parser(
        "check",
        help="list what is wrong with a registry file",
        description="Reads a registry file and the headers of the files it names. Prints every problem with the path of its"
        " key, and exits with 1 when there is one. The weights are not read.",
    )
    parser.add_argument("--registry", metavar="FILE", type=Path, help="the registry (default: ./registry.yaml)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the problems, 1 when there are any. CliError when there is no file to check."""
    path = find_registry(args.registry)
    warnings: list[Problem] = []
    counts = ""
    later = False
    try:
        registry = load_registry(path)
    except RegistryError as error:
        problems = list(error.problems) or [Problem(None, str(error).removeprefix(f"{path}: "))]
        later = bool(error.problems)
    else:
        catalog = Catalog(registry)
        problems = list(_problems(catalog))
        warnings = list(_warnings(catalog))
        counts = f"{_count(len(registry.models), 'model')}, {_count(len(registry.requests.profiles), 'profile')}"
    if args.json:
        print_json({"ok": not problems, "problems": _as_json(problems), "warnings": _as_json(warnings)})
    else:
        for problem in problems:
            print(printable(f"{path}: {problem}"))
        for warning in warnings:
            print(printable(f"{path}: warning: {warning}"))
        if not problems:
            print(printable(f"{path}: {counts}, no problem"))
        if later:
            print(
                printable(
                    f"{path}: how keys go together, and the files of its models, are looked at when that is mended"
                )
            )
    return 1 if problems else 0


def _problems(catalog: Catalog) -> Iterator[Problem]:
    """Of a file whose keys are right: what a start or a request would stumble over."""
    from gateway.residency.pins import check_pins
    from gateway.residency.sizes import Sizes
    from gateway.server import StartError, check_bind  # brings uvicorn and starlette

    registry = catalog.registry
    try:
        check_bind(registry.settings.server)
    except StartError as error:
        yield Problem("server.host", str(error))
    budget = registry.settings.memory.budget_bytes
    for index, model in enumerate(catalog.models):
        if model.error is not None:
            yield Problem(f"models[{index}].source", model.error.message)
        elif (least := Sizes.of(model.footprint, model.kv_grant_bytes).least) > budget:
            message = f"needs at least {format_bytes(least)}, and memory.budget is {format_bytes(budget)}"
            yield Problem(f"models[{index}].source", f"{message}: every request for it is refused")
    try:
        check_pins(catalog, budget)
    except RegistryError as error:
        keys, _, message = str(error).removeprefix(f"{registry.path}: ").partition(": ")
        yield Problem(keys, message)


def _warnings(catalog: Catalog) -> Iterator[Problem]:
    """What is allowed, and hardly meant."""
    registry = catalog.registry
    for warning in registry.settings.memory.warnings:
        key, _, message = warning.partition(": ")
        yield Problem(key, message)
    yield from _idle_rules(registry)
    for index, origin in enumerate(registry.settings.server.cors_origins):
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            message = f"{shorten(origin)} is no browser's origin, such as https://app.example or http://localhost:3000"
            yield Problem(f"server.cors_origins[{index}]", message)
    for index, (entry, model) in enumerate(zip(registry.models, catalog.models, strict=True)):
        if model.checkpoint is not None:
            most = model.checkpoint.context
            if entry.context is not None and most is not None and entry.context > most:
                message = f"{entry.context} is more than the file's {most} tokens, which is what the model gets"
                yield Problem(f"models[{index}].context", message)
            for message in unused_family_values(model.checkpoint):
                yield Problem(f"models[{index}].source", message)


def _idle_rules(registry: Registry) -> Iterator[Problem]:
    for index, rule in enumerate(registry.requests.rules):
        for place, glob in enumerate(rule.globs):
            if not any(fnmatchcase(entry.id, glob) for entry in registry.models):
                where = f"rules[{index}].match" + ("" if isinstance(rule.match, str) else f"[{place}]")
                yield Problem(where, f"{glob!r} matches no model's id")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _as_json(problems: list[Problem]) -> list[dict[str, str | None]]:
    return [{"key": problem.key, "message": problem.message} for problem in problems]
