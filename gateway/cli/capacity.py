"""``innkeeper capacity MODEL``: how many requests of which length it holds at a time."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gateway.cli.client import GatewayClient
from gateway.cli.output import CliError, print_fields, print_json, print_table
from gateway.registry.values import format_bytes

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``capacity``."""
    parser = subparsers.add_parser(
        "capacity",
        help="show how many requests of which length fit",
        description="Shows for 1 to 32 requests at a time the deepest context that fits the memory granted to a model: as its"
        " worker measures it, or as an estimate from the file's header where it is not loaded. Nothing is loaded.",
    )
    parser.add_argument("model", help="its id or alias")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints it. Raises CliError, also for a model that decodes no rows."""
    with GatewayClient() as client:
        model = client.model(args.model)
    capacity: dict[str, Any] | None = model["capacity"]
    if capacity is None:
        why = model["last_error"] or f"a model for {model['task']} has no rows that grow"
        raise CliError(f"{model['id']} has no capacity to show: {why}")
    if args.json:
        print_json({"model": model["id"], "state": model["state"], **capacity})
        return 0
    print_fields([(name, value) for name, value in _fields(model, capacity) if value])
    print()
    print_table(
        ["rows", "tokens each"],
        [
            [str(row["rows"]), _tokens(row["tokens"]) if row["tokens"] != 0 else "do not fit"]
            for row in capacity["rows"]
        ],
    )
    return 0


def _fields(model: dict[str, Any], capacity: dict[str, Any]) -> list[tuple[str, str]]:
    width = capacity["width"]
    return [
        ("model", f"{model['id']} ({model['state']})"),
        ("estimate", "from the file's header: it is not loaded" if capacity["estimate"] else ""),
        ("context", _tokens(capacity["context"])),
        ("KV grant", format_bytes(capacity["grant_bytes"])),
        ("width", "" if width is None else f"{width} rows decoded together at most"),
        ("queue limit", f"{capacity['queue_limit']} callers may wait"),
    ]


def _tokens(count: int | None) -> str:
    return "any" if count is None else str(count)
