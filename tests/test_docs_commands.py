"""What README and docs tell people to type: commands, make targets, requests and Python that there are."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Match

from gateway.cli import build_parser
from gateway.registry.load import load_registry
from tests.gateway.helpers_app import make_app

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in DOCUMENTS}
FENCE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
CURL = re.compile(r"curl (?:-s )?(http://127\.0\.0\.1:8000\S*)[^{]*?'({.*?})'$", re.DOTALL | re.MULTILINE)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def told(start: str) -> Iterator[str]:
    """Lines of code blocks and spans of code that begin so, without comments and what may be left out."""
    for text in TEXTS.values():
        lines = [line for _, block in FENCE.findall(text) for line in block.splitlines()]
        for line in (*lines, *SPAN.findall(FENCE.sub("", text))):
            bare = line.removeprefix(".venv/bin/").split(" #")[0].strip()
            if bare.startswith(start):
                yield re.sub(r"[\[\]]", "", bare)


def curls(name: str) -> list[tuple[str, dict[str, Any]]]:
    """The path and the body of each request."""
    found = CURL.findall(TEXTS[name].replace("\\\n", ""))
    return [(url.removeprefix("http://127.0.0.1:8000"), json.loads(body)) for url, body in found]


@pytest.mark.parametrize("command", sorted(set(told("innkeeper "))))
def test_command_can_be_typed(command: str) -> None:
    try:
        build_parser().parse_args(shlex.split(command)[1:])
    except SystemExit:
        # Named without what it asks for, as in "`innkeeper inspect` reads the header": the command has to be there at least.
        assert command.removeprefix("innkeeper ") in _without_arguments()


@pytest.mark.parametrize("command", sorted(set(told("make "))))
def test_target_is_in_the_makefile(command: str) -> None:
    assert command.split()[1] in TARGETS


@pytest.mark.parametrize(("name", "requests"), [("README.md", 2), ("embeddings.md", 2)])
def test_request_has_a_route_and_a_model_that_is_told_of(name: str, requests: int) -> None:
    asked = curls(name)
    assert len(asked) == requests
    shipped = {model.id for model in load_registry(ROOT / "registry.yaml").models}
    for path, body in asked:
        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        assert any(route.matches(scope)[0] is Match.FULL for route in make_app().routes), path
        assert body["model"] in shipped or f"{{id: {body['model']}, source:" in TEXTS[name]


def test_python_compiles() -> None:
    blocks = [block for text in TEXTS.values() for language, block in FENCE.findall(text) if language == "python"]
    assert blocks
    for block in blocks:
        compile(block, "example", "exec")


def _without_arguments() -> set[str]:
    parsers = next(action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return set(parsers.choices)
