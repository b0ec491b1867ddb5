"""``innkeeper events``: every transition of every model, as it happens."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

from gateway.cli.client import GatewayClient
from gateway.cli.output import printable
from gateway.registry.values import format_bytes

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``events``."""
    parser = subparsers.add_parser(
        "events",
        help="watch the models come and go",
        description="Prints every transition of every model as it happens, until Ctrl-C or the gateway's end.",
    )
    parser.add_argument("--model", metavar="ID", help="of this model only: its id or alias")
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints until the stream ends. Raises CliError."""
    with GatewayClient() as client:
        model = None if args.model is None else client.model(args.model)["id"]
        for name, data in client.events():
            if model is not None and data.get("model") not in (model, None):
                continue
            print(json.dumps({"event": name, **data}) if args.json else printable(_line(name, data)), flush=True)
    return 0


def _line(name: str, event: dict[str, Any]) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(event["at"]))
    if name != "transition":
        return f"{clock}  {name}: {event.get('message')}"
    charged = f", {format_bytes(event['charged_bytes'])} charged" if event["charged_bytes"] else ""
    return f"{clock}  {event['model']}  {event['from']} -> {event['to']}  ({event['cause']}{charged})"
