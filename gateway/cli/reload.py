"""``innkeeper reload``: the gateway reads its registry file again."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gateway.cli.client import GatewayClient
from gateway.cli.output import print_json

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]

_LINES = {
    "added": "added",
    "removed": "removed",
    "reloaded": "load settings changed, loaded anew when it is asked for",
    "updated": "changed",
    "needs_restart": "changed in the file, and waits for a restart",
}


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``reload``."""
    parser = subparsers.add_parser(
        "reload",
        help="read the registry again",
        description="Has the gateway read its registry file again. With an error in it nothing changes.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Does it. Raises CliError, which names the key at fault."""
    with GatewayClient() as client:
        answer = client.ask("POST", "/admin/registry/reload", patient=True)
    if args.json:
        print_json(answer)
        return 0
    lines = [f"{', '.join(answer[name])}: {meaning}" for name, meaning in _LINES.items() if answer.get(name)]
    print("\n".join(lines) if lines else "nothing changed")
    return 0
