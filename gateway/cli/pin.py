"""``innkeeper pin MODEL``: it stays in memory once it is loaded."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gateway.cli.client import GatewayClient
from gateway.cli.output import print_json

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``pin``."""
    parser = subparsers.add_parser(
        "pin",
        help="keep a model in memory",
        description="Keeps a model from being evicted, unloaded for being idle or drained for another, until `innkeeper "
        "unpin`. Loads nothing.",
    )
    parser.add_argument("model", help="its id or alias")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Does it. Raises CliError."""
    with GatewayClient() as client:
        answer = client.ask_of_model(args.model, "pin")
    if args.json:
        print_json(answer)
    else:
        print(f"{answer['model']} is pinned ({answer['state']})")
    return 0
