"""``innkeeper config``: looks at a registry file, without a gateway. Its commands have a file each."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gateway.cli import config_check, config_show

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser"]


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``config`` and what is below it."""
    parser = subparsers.add_parser(
        "config",
        help="check a registry file, or show what a name resolves to",
        description="Looks at a registry file. No gateway is asked, and nothing is changed.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (config_check, config_show):
        command.add_parser(commands)
