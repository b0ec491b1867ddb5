"""``innkeeper models``: what the running gateway offers, or what a registry file would."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.client import GatewayClient
from gateway.cli.output import print_json, print_table, user_path
from gateway.registry.catalog import Catalog, ResolvedModel
from gateway.registry.load import load_registry
from gateway.registry.values import format_bytes

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``models``."""
    parser = subparsers.add_parser(
        "models",
        help="list the models",
        description="Lists the models of the gateway at INNKEEPER_URL; with --registry those of a file, without a gateway.",
    )
    parser.add_argument("--registry", metavar="FILE", type=Path, help="read this registry instead of asking a gateway")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the list. Raises CliError or RegistryError."""
    if args.registry is not None:
        models = [_of_registry(model) for model in Catalog(load_registry(user_path(args.registry))).models]
    else:
        with GatewayClient() as client:
            models = client.models()
    if args.json:
        print_json(models)
    elif models:
        print_table(["id", "task", "context", "weights", "aliases", "state"], [_row(model) for model in models])
    else:
        print("no models: add one under `models:` in the registry")
    return 0


def _of_registry(model: ResolvedModel) -> dict[str, Any]:
    """In the shape of ``/v1/models``."""
    return {
        "id": model.id,
        "aliases": list(model.aliases),
        "task": model.task,
        "profile": model.profile,
        "profiles": list(model.profiles),
        "context": model.footprint.context or None,
        "footprint_bytes": model.footprint.static_bytes or None,
        "error": None if model.error is None else {"code": model.error.code, "message": model.error.message},
    }


def _row(model: dict[str, Any]) -> list[str]:
    error, weights = model.get("error"), model.get("footprint_bytes")
    return [
        str(model["id"]),
        str(model.get("task") or ""),
        str(model.get("context") or ""),
        format_bytes(weights) if isinstance(weights, int) else "",
        ", ".join(model.get("aliases") or []),
        f"unusable: {error['message']}" if error else str(model.get("state") or "ready to load"),
    ]
