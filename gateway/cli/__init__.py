"""The ``innkeeper`` command. One file a command, with two functions: ``add_parser(subparsers)`` and ``run(args) -> int``.

:func:`main` collects them from :data:`COMMANDS`, runs the one asked for, and turns what it raises into a sentence on standard
error and exit status 1. A command imports what it needs inside ``run``, so that the others start quickly. Commands reach MLX
only through a subprocess.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from engines.errors import EngineError
from gateway.cli import (
    capacity,
    chat,
    config,
    doctor,
    events,
    inspect,
    leases,
    load,
    models,
    pin,
    plan,
    ps,
    reload,
    serve,
    unload,
    unpin,
)
from gateway.cli.output import CliError, printable
from gateway.errors import GatewayError
from gateway.registry.load import RegistryError

__all__ = ["COMMANDS", "main"]

COMMANDS = (
    serve,
    chat,
    models,
    ps,
    load,
    unload,
    pin,
    unpin,
    plan,
    capacity,
    leases,
    events,
    reload,
    config,
    inspect,
    doctor,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``innkeeper ARGV`` and returns its exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    args = build_parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except (CliError, EngineError, GatewayError, RegistryError) as error:
        print(f"innkeeper: {printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has gone (`innkeeper models | head -1`). Python flushes standard output once more at exit: give it
        # somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="innkeeper", description="Many local models, one memory budget, one endpoint.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"innkeeper {metadata.version('mlx-innkeeper')}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser
