"""``innkeeper ps``: what is in memory, for whom, and what waits."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gateway.cli.client import GatewayClient
from gateway.cli.output import print_json, print_table, seconds
from gateway.registry.values import format_bytes

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``ps``."""
    parser = subparsers.add_parser(
        "ps",
        help="show what is in memory",
        description="Shows the models that are in memory, loading, failed or waited for, the budget and the queue.",
    )
    parser.add_argument("--all", action="store_true", help="the unloaded models too")
    parser.add_argument("--json", action="store_true", help="print all of /admin/status as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints it. Raises CliError."""
    with GatewayClient() as client:
        status = client.ask("GET", "/admin/status")
    if args.json:
        print_json(status)
        return 0
    pids = {worker["model"]: worker["pid"] for worker in status["workers"] if worker["model"]}
    rows = [_row(model, pids) for model in status["models"] if args.all or _stirs(model)]
    if rows:
        print_table(["model", "state", "charged", "measured", "leases", "waiting", "idle", "pid", ""], rows)
    else:
        print("nothing is in memory")
    if status["queue"]:
        print()
        columns = ["queue", "model", "waited", "estimated"]
        print_table(columns, [_queued(entry) for entry in status["queue"]])
    print()
    print(_budget(status["budget"]))
    return 0


def _stirs(model: dict[str, Any]) -> bool:
    return bool(model["state"] != "unloaded" or model["charged_bytes"] or model["waiting"])


def _row(model: dict[str, Any], pids: dict[str, int]) -> list[str]:
    state = f"{model['state']} ({model['cause']})" if model["cause"] else str(model["state"])
    notes = ["pinned"] if model["pinned"] else []
    if model["shares"]:
        notes.append(f"shares {model['shares']}")
    if model["state"] == "failed" and model["last_error"]:
        notes.append(str(model["last_error"]))
    return [
        str(model["id"]),
        state,
        format_bytes(model["charged_bytes"]) if model["charged_bytes"] else "",
        format_bytes(model["measured_bytes"]) if model["measured_bytes"] else "",
        str(model["leases"] or ""),
        str(model["waiting"] or ""),
        seconds(model["idle_s"]),
        str(pids.get(model["id"], "")),
        ", ".join(notes),
    ]


def _queued(entry: dict[str, Any]) -> list[str]:
    return [str(entry["position"]), str(entry["model"]), seconds(entry["waited_s"]), seconds(entry["eta_s"])]


def _budget(budget: dict[str, int]) -> str:
    charged, total = format_bytes(budget["charged_bytes"]), format_bytes(budget["total_bytes"])
    overhead = f", {format_bytes(budget['overhead_bytes'])} overhead beside it" if budget["overhead_bytes"] else ""
    return f"budget: {charged} of {total} charged{overhead}"
