"""The work for an answer grows as its length does: counted, in characters that are looked at or moved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engines.text.output import output_parser
from engines.text.output.json_scanner import JsonScanner
from engines.text.output.reader import Marks, Reader
from engines.text.reasoning import FORMATS
from tests.engines.text.tool_syntax.helpers_golden import TOOLS, WRITERS, syntax

THINK = next(each for each in FORMATS if each.name == "think")
LONG = 4000  # characters of the shorter answer


class Counter:
    total = 0


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    """Counts what the three places do that touch text by the piece."""
    counter = Counter()
    add, find, scan = Reader.add, Marks.find, JsonScanner.scan

    def counted_add(self: Reader, text: str) -> None:
        add(self, text)
        counter.total += len(self.__dict__["_text"])

    def counted_find(self: Marks, text: str, at: int) -> tuple[int, str]:
        counter.total += len(text) - at
        return find(self, text, at)

    def counted_scan(self: JsonScanner, text: str, at: int) -> tuple[int, str]:
        end, out = scan(self, text, at)
        counter.total += end - at
        return end, out

    monkeypatch.setattr(Reader, "add", counted_add)
    monkeypatch.setattr(Marks, "find", counted_find)
    monkeypatch.setattr(JsonScanner, "scan", counted_scan)
    yield counter


def answers(length: int) -> dict[str, tuple[str, str]]:
    """By what is long in it: the name of a syntax, and an answer."""
    words = "some words < and { more [ of » them\n" * (length // 36)
    plain = "some words and more of them " * (length // 28)
    long_call = [("search", {"query": plain})]
    return {
        "content": ("hermes", words),
        "thinking": ("hermes", f"<think>{words}"),
        "whitespace": ("hermes", "a" + " " * length + "b"),
        "json argument": ("hermes", WRITERS["hermes"](long_call)),
        "text argument": ("qwen3_coder", WRITERS["qwen3_coder"](long_call)),
        "python argument": ("llama4", WRITERS["llama4"](long_call)),
        "gemma argument": ("gemma4", WRITERS["gemma4"](long_call)),
        "unclosed python argument": ("lfm2", f'<|tool_call_start|>[search(query="{plain}'),
        "many calls": ("mistral", WRITERS["mistral"]([("ping", {})] * (length // 24))),
        "marks alone": ("hermes", "<tool_call>" * (length // 11)),
        "calls that break off in calls": ("hermes", '<tool_call>{"name": "f", "a": "' * (length // 32)),
        "unclosed values in values": ("glm45", "<tool_call>f<arg_key>a</arg_key><arg_value>" * (length // 44)),
        "marks in a fence": ("gemma3", "```tool_code f(a='" * (length // 18)),
    }


@pytest.mark.parametrize("case", sorted(answers(100)))
def test_work_grows_as_the_text_does(case: str, looked_at: Counter) -> None:
    work = []
    for length in (LONG, 2 * LONG):
        name, text = answers(length)[case]
        looked_at.total = 0
        parser = output_parser(THINK, syntax(name), TOOLS)
        told = 0
        for at in range(0, len(text), 4):  # about a token
            told += sum(len(part.source) for part in parser.feed(text[at : at + 4]))
        told += sum(len(part.source) for part in parser.finish())
        assert told == len(text)
        work.append(looked_at.total / len(text))
    assert work[1] < work[0] * 1.2 + 1, "work for each character grows with the answer"
    assert work[1] < 20
