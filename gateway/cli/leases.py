"""``innkeeper leases``: who uses which model; and the end of one lease."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING
from urllib.parse import quote

from gateway.cli.client import GatewayClient
from gateway.cli.output import print_json, print_table, seconds

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``leases``."""
    parser = subparsers.add_parser(
        "leases",
        help="list the leases, or cancel one",
        description="Lists who holds which model. While a lease is held its model is not unloaded.",
    )
    parser.add_argument("--cancel", metavar="LEASE", help="cancel the requests of this lease instead")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints them. Raises CliError."""
    with GatewayClient() as client:
        if args.cancel is not None:
            answer = client.ask("DELETE", f"/admin/leases/{quote(args.cancel, safe='')}")
        else:
            answer = client.ask("GET", "/admin/leases")
    if args.json:
        print_json(answer)
    elif args.cancel is not None:
        print(f"{answer['id']} of {answer['model']} is cancelled")
    elif answer["leases"]:
        columns = ["lease", "model", "generation", "age", "client", "route"]
        fields = ("id", "model", "generation", "age_s", "client", "route")
        rows = [[seconds(lease[f]) if f == "age_s" else str(lease[f]) for f in fields] for lease in answer["leases"]]
        print_table(columns, rows)
    else:
        print("no leases: nobody uses a model now")
    return 0
