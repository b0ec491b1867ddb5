"""``innkeeper unpin MODEL``: it may be evicted or unloaded again."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gateway.cli.client import GatewayClient
from gateway.cli.output import print_json

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``unpin``."""
    parser = subparsers.add_parser(
        "unpin",
        help="let a model go again",
        description="Takes a pin away, the registry's too until its key changes there. Unloads nothing.",
    )
    parser.add_argument("model", help="its id or alias")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Does it. Raises CliError."""
    with GatewayClient() as client:
        answer = client.ask_of_model(args.model, "unpin")
    if args.json:
        print_json(answer)
    else:
        print(f"{answer['model']} is not pinned ({answer['state']})")
    return 0
