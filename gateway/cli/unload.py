"""``innkeeper unload MODEL``: out of memory, after its requests or at once."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gateway.cli.client import GatewayClient, RequestRefused
from gateway.cli.output import CliError, print_json

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]

_HINTS = {
    "model_busy": "wait longer with --deadline, or cancel its requests with --mode abort",
}


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``unload``."""
    parser = subparsers.add_parser(
        "unload",
        help="unload a model",
        description="Unloads a model and returns when its memory is free. Interrupted, the unload goes on.",
    )
    parser.add_argument("model", help="its id or alias")
    parser.add_argument(
        "--mode",
        choices=("drain", "abort", "force"),
        default="drain",
        help="drain: its requests end first (default); abort: they are cancelled; force: even if it is pinned, and its "
        "worker is killed at the deadline",
    )
    parser.add_argument(
        "--deadline", metavar="SECONDS", type=_seconds, default=30.0, help="for its requests (default: 30)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Waits for it. Raises CliError, which says how else it could be done."""
    try:
        with GatewayClient() as client:
            answer = client.ask_of_model(args.model, "unload", {"mode": args.mode, "deadline_s": args.deadline})
    except RequestRefused as error:
        raise CliError(f"{error} ({_HINTS[error.code]})" if error.code in _HINTS else str(error)) from error
    if args.json:
        print_json(answer)
        return 0
    leases = answer["waited_for"]
    print(f"{answer['model']} is {answer['state']}" + (f"; waited for {', '.join(leases)}" if leases else ""))
    return 0


def _seconds(text: str) -> float:
    """Seconds, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds (0 to 86400)")
    return value
