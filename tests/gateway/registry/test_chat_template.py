"""A template in the registry: the text itself, or a file beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.registry.chat_template import read_chat_template
from gateway.registry.values import ValueProblem
from tests.gateway.registry.helpers_settings import SIM, catalog_of, origins, problems_of


@pytest.mark.parametrize("text", ["{{ messages }}", "{% if x %}a{% endif %}", "{# none #}", "two\nlines"])
def test_template_itself_is_taken_as_it_stands(text: str) -> None:
    assert read_chat_template(text, Path("/nowhere")) == (text, None)


def test_template_file_is_relative_to_the_registry(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "x.jinja").write_text("{{ messages }}\n")
    models = [{**SIM, "overrides": {"chat_template": "templates/x.jinja"}}]
    catalog = catalog_of(tmp_path / "registry.yaml", models=models)
    assert catalog.resolve("m").request.chat_template == "{{ messages }}\n"
    assert origins(catalog, "m")["chat_template"][1] == f"overrides ({tmp_path / 'templates' / 'x.jinja'})"


def test_template_file_that_cannot_be_used_is_told_by_its_key(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"{{ \xff")
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "huge").write_bytes(b"x" * (1024**2 + 1))
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    said = {
        "none.jinja": "no such file; a template itself has {{ or {% in it",
        "binary": "not UTF-8 at byte 3",
        "empty": "is empty",
        "huge": "at most 1.0 MiB",
        "pipe": "no such file",
        ".": "no such file",
        "~no-such-user/x": "cannot be read",
        "a\0b": "",
        "x" * 300: "",
    }
    for value, message in said.items():
        problems = problems_of(tmp_path / "registry.yaml", profiles={"p": {"chat_template": value}})
        assert message in problems["profiles.p.chat_template"]
        with pytest.raises(ValueProblem):
            read_chat_template(value, tmp_path)
