"""``innkeeper chat``: a conversation in the terminal, through the gateway."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gateway.cli.client import GatewayClient
from gateway.cli.output import CliError, printable

if TYPE_CHECKING:
    from argparse import _SubParsersAction

__all__ = ["add_parser", "run"]

_TEXT_TASKS = ("text", "vision")


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``chat``."""
    parser = subparsers.add_parser(
        "chat",
        help="talk to a model",
        description="A conversation with a model of the gateway at INNKEEPER_URL. Ctrl-C stops an answer, Ctrl-D leaves."
        " When standard input is not a terminal, all of it is one message.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="id or alias, with or without @profile (default: the one called default, or the first)",
    )
    parser.add_argument("--system", metavar="TEXT", help="a system message")
    parser.add_argument("--max-tokens", metavar="N", type=int, help="end each answer after so many tokens")
    parser.add_argument("--temperature", metavar="T", type=float, help="0 always picks the likeliest token")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Talks until the input ends. CliError when no gateway answers, or when a piped message gets no answer."""
    options = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    with GatewayClient() as client:
        models = client.models()  # asked in any case: a gateway that does not answer is told before anything is typed
        model = args.model or _choose(models)
        conversation = Conversation(
            client, model, {name: value for name, value in options.items() if value is not None}
        )
        if args.system:
            conversation.messages.append({"role": "system", "content": args.system})
        if not sys.stdin.isatty():
            message = sys.stdin.read().strip()
            if not message:
                raise CliError("standard input holds no message")
            return 0 if conversation.ask(message) else 130
        print(f"Talking to {printable(model)}. Ctrl-C stops an answer, Ctrl-D leaves.")
        for message in _typed_messages():
            try:
                conversation.ask(message)
            except CliError as error:
                print(f"innkeeper: {printable(str(error))}", file=sys.stderr)
    return 0


class Conversation:
    """The messages so far. A message that got no answer is forgotten; a stopped answer is kept as far as it came."""

    def __init__(self, client: GatewayClient, model: str, options: dict[str, Any]) -> None:
        self.messages: list[dict[str, str]] = []
        self._client = client
        self._model = model
        self._options = options

    def ask(self, message: str) -> bool:
        """Prints the answer as it comes. False when Ctrl-C stopped it. CliError as the client's."""
        self.messages.append({"role": "user", "content": message})
        body = {"model": self._model, "messages": self.messages, **self._options}
        pieces: list[str] = []
        finished = False
        try:
            with contextlib.closing(self._client.chat(body)) as answer:
                for piece in answer:
                    pieces.append(piece)
                    print(printable(piece, keep="\n\t"), end="", flush=True)
            finished = True
        except KeyboardInterrupt:
            pass  # the connection is closed, and with it the answer
        finally:
            if pieces or finished:
                print()
                self.messages.append({"role": "assistant", "content": "".join(pieces)})
            else:
                self.messages.pop()
        return finished


def _typed_messages() -> Iterator[str]:
    """Lines typed at a prompt, until Ctrl-D. Ctrl-C drops the line."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - importing it gives input() editing and a history
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        if line:
            yield line


def _choose(models: list[dict[str, Any]]) -> str:
    """The model called ``default``, else the first that can be talked to."""
    usable = [model for model in models if model.get("task") in _TEXT_TASKS and not model.get("error")]
    for model in usable:
        if "default" in (model["id"], *model.get("aliases", ())):
            return str(model["id"])
    if usable:
        return str(usable[0]["id"])
    raise CliError("the gateway has no usable text model: `innkeeper models` says what it has")
