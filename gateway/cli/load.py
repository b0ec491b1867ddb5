"""``innkeeper load MODEL``: into memory now, before anybody asks for it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gateway.cli.client import GatewayClient
from gateway.cli.output import print_json

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``load``."""
    parser = subparsers.add_parser(
        "load",
        help="load a model",
        description="Loads a model and returns when it answers. Interrupted, the load goes on. A load is no pin: others may "
        "have it evicted.",
    )
    parser.add_argument("model", help="its id or alias")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Waits for it. Raises CliError."""
    with GatewayClient() as client:
        answer = client.ask_of_model(args.model, "load")
    if args.json:
        print_json(answer)
    else:
        print(f"{answer['model']} is {answer['state']}")
    return 0
