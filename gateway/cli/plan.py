"""``innkeeper plan MODEL``: what a request for it would lead to now."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gateway.cli.client import GatewayClient
from gateway.cli.output import print_fields, print_json
from gateway.registry.values import format_bytes

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]

_ACTIONS = {
    "lease": "it is loaded, and a request is served at once",
    "join": "a request waits for the load that is under way",
    "queue": "a request waits in the queue",
    "load": "it is loaded into free memory",
    "evict": "others are unloaded for it",
    "drain": "others finish their requests and are unloaded for it",
    "refuse": "a request is refused",
}


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``plan``."""
    parser = subparsers.add_parser(
        "plan",
        help="show what a request would lead to",
        description="Shows what a request for a model would lead to now: whether it fits, whom it would evict and why, what "
        "it waits for. Nothing is done.",
    )
    parser.add_argument("model", help="its id or alias")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints it. Raises CliError."""
    with GatewayClient() as client:
        plan = client.ask("GET", "/admin/plan", model=args.model)
    if args.json:
        print_json(plan)
    else:
        print_fields([(name, value) for name, value in _fields(plan) if value])
    return 0


def _fields(plan: dict[str, Any]) -> list[tuple[str, str]]:
    action, error = str(plan["action"]), plan["error"]
    charged, grant = plan["charged_bytes"], plan["grant_bytes"]
    return [
        ("model", f"{plan['model']} ({plan['state']})"),
        ("plan", f"{action}: {_ACTIONS.get(action, '')}"),
        ("fits", "yes" if plan["fits"] else "no"),
        ("charged", f"{format_bytes(charged)}, of which {format_bytes(grant)} for requests" if charged else ""),
        ("evicts", ", ".join(plan["evicts"])),
        ("drains", ", ".join(plan["drains"])),
        ("rule", plan["rule"] or ""),
        ("waits for", "; ".join(plan["waits_for"])),
        ("error", f"{error['code']}: {error['message']}" if error else ""),
    ]
