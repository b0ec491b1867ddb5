"""``innkeeper serve``: the gateway, from a registry file or for one model file."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.output import CliError, user_path
from gateway.registry.catalog import Catalog
from gateway.registry.load import Registry, load_registry, single_model_registry

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["DEFAULT_REGISTRY", "add_parser", "find_registry", "run"]

DEFAULT_REGISTRY = Path("registry.yaml")


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``serve``."""
    parser = subparsers.add_parser(
        "serve",
        help="run the gateway",
        description="Runs the gateway until SIGTERM or Ctrl-C. Models are loaded when they are first asked for.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--registry", metavar="FILE", type=Path, help="the registry (default: ./registry.yaml)")
    what.add_argument("--model", metavar="FILE", type=Path, help="serve this one model file, without a registry")
    parser.add_argument("--host", help="address to listen on, instead of the registry's")
    parser.add_argument(
        "--port", type=port_number, help="port to listen on, instead of the registry's; 0: any free one"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serves until a signal. CliError, RegistryError or GatewayError when it cannot start."""
    registry = _single_model(args.model) if args.model else load_registry(find_registry(args.registry))
    changes = {name: value for name in ("host", "port") if (value := getattr(args, name)) is not None}
    settings = replace(registry.settings, server=replace(registry.settings.server, **changes))
    # The server brings uvicorn and starlette: other commands do without.
    from gateway.server import StartError, serve

    try:
        return serve(settings, Catalog(registry))
    except StartError as error:
        raise CliError(str(error)) from error


def find_registry(named: Path | None) -> Path:
    """The registry file that was named, or the one in the working directory. CliError when there is none."""
    if named is not None:
        return user_path(named)
    if DEFAULT_REGISTRY.exists():
        return DEFAULT_REGISTRY
    raise CliError(
        f"there is no registry.yaml in {Path.cwd()}: name one with --registry FILE, or serve one model with --model FILE"
    )


def port_number(text: str) -> int:
    """A TCP port, for argparse."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return int(text)


def _single_model(model: Path) -> Registry:
    """The registry of one model, which must be usable: there is nothing else to serve."""
    registry = single_model_registry(user_path(model))
    for resolved in Catalog(registry).models:
        if resolved.error is not None:
            raise resolved.error
    return registry
