"""``innkeeper chat`` against a scripted gateway: piped, and at a real pseudo-terminal."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from gateway.cli import main
from tests.gateway.cli.helpers_gateway import (
    BOUND_S,
    DONE,
    MODELS,
    ScriptedGateway,
    data,
    event,
    innkeeper,
    scripted_gateway,
    terminal,
)


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    with scripted_gateway() as scripted:
        yield scripted


@dataclass(frozen=True)
class Result:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process, which is quicker than one of its own."""

    def run(*args: str, url: str, stdin: str) -> Result:
        monkeypatch.setenv("INNKEEPER_URL", url)
        monkeypatch.delenv("INNKEEPER_API_KEY", raising=False)
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        status = main(args)
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


def test_chat_piped_input_is_one_message(gateway: ScriptedGateway) -> None:
    result = innkeeper("chat", url=gateway.url, stdin="first line\nsecond line\n", INNKEEPER_API_KEY="sk-1")
    assert (result.stdout, result.stderr, result.returncode) == ("Hello there\n", "", 0)
    assert gateway.requests == [
        {"model": "second", "messages": [{"role": "user", "content": "first line\nsecond line"}], "stream": True}
    ]
    assert gateway.keys == ["Bearer sk-1"]


def test_chat_options_are_sent(gateway: ScriptedGateway, run: Run) -> None:
    options = ("--system", "Be brief.", "--max-tokens", "5", "--temperature", "0")
    assert run("chat", "one", *options, url=f"{gateway.url}/v1/", stdin="hi").returncode == 0
    (request,) = gateway.requests
    assert request["model"] == "one"
    assert request["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (request["max_tokens"], request["temperature"]) == (5, 0.0)


@pytest.mark.parametrize(("models", "chosen"), [(MODELS, "second"), (MODELS[:2], "first")])
def test_chat_chooses_a_model(models: object, chosen: str, gateway: ScriptedGateway, run: Run) -> None:
    gateway.models = {"data": models}
    assert run("chat", url=gateway.url, stdin="hi").returncode == 0
    assert gateway.requests[0]["model"] == chosen


def test_chat_without_a_text_model(gateway: ScriptedGateway, run: Run) -> None:
    gateway.models = {"data": [MODELS[0], MODELS[3]]}
    result = run("chat", url=gateway.url, stdin="hi")
    assert result.returncode == 1
    assert result.stderr.startswith("innkeeper: the gateway has no usable text model")


def test_chat_with_nothing_to_say(gateway: ScriptedGateway, run: Run) -> None:
    result = run("chat", url=gateway.url, stdin="  \n")
    assert (result.returncode, result.stderr) == (1, "innkeeper: standard input holds no message\n")
    assert not gateway.requests


def test_chat_shows_the_servers_refusal(gateway: ScriptedGateway, run: Run) -> None:
    gateway.status = 400
    result = run("chat", url=gateway.url, stdin="hi")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "innkeeper: this model has no chat template\n"


def test_chat_error_in_mid_answer(gateway: ScriptedGateway, run: Run) -> None:
    gateway.blocks = [event("Half"), data({"error": {"message": "the worker died"}}), DONE]
    result = run("chat", url=gateway.url, stdin="hi")
    assert (result.returncode, result.stdout, result.stderr) == (1, "Half\n", "innkeeper: the worker died\n")


def test_chat_answer_without_an_end_marker(gateway: ScriptedGateway, run: Run) -> None:
    gateway.blocks = [event("Half")]
    result = run("chat", url=gateway.url, stdin="hi")
    assert (result.returncode, result.stdout) == (1, "Half\n")
    assert "ended the answer without its end marker" in result.stderr


def test_chat_prints_no_control_sequences(gateway: ScriptedGateway, run: Run) -> None:
    gateway.blocks = [event("\x1b[2Jé 👩‍👩‍👧\n\tx\x9b"), DONE]
    result = run("chat", url=gateway.url, stdin="hi")
    assert result.stdout == "�[2Jé 👩‍👩‍👧\n\tx�\n"


def test_chat_without_a_gateway(run: Run) -> None:
    result = run("chat", url="http://127.0.0.1:9", stdin="hi")
    assert result.returncode == 1
    assert result.stderr == (
        "innkeeper: no gateway answers at http://127.0.0.1:9: start one with `innkeeper serve`, or set INNKEEPER_URL\n"
    )


def test_chat_with_a_wrong_key(gateway: ScriptedGateway, run: Run) -> None:
    gateway.models = None
    result = run("chat", url=gateway.url, stdin="hi")
    assert (result.returncode, result.stderr) == (1, "innkeeper: no such key (set INNKEEPER_API_KEY)\n")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "http://[::1"])
def test_chat_with_a_url_that_is_none(url: str, run: Run) -> None:
    result = run("chat", url=url, stdin="hi")
    assert result.returncode == 1
    assert result.stderr == f"innkeeper: INNKEEPER_URL is {url!r}, not a URL such as http://127.0.0.1:8000\n"


def test_chat_at_a_server_that_is_no_gateway(gateway: ScriptedGateway, run: Run) -> None:
    gateway.models = {"hello": "world"}
    result = run("chat", url=gateway.url, stdin="hi")
    assert result.returncode == 1
    assert "answers, but not as Innkeeper does" in result.stderr


def test_chat_remembers_the_conversation(gateway: ScriptedGateway) -> None:
    with terminal(gateway.url, "chat", "first") as screen:
        screen.read_until("> ")
        screen.type("hello\n")
        screen.read_until("Hello there")
        screen.read_until("> ")
        screen.type("\n")  # an empty line asks nothing
        screen.read_until("> ")
        screen.type("again\n")
        screen.read_until("Hello there")
        screen.read_until("> ")
        screen.type("\x04")
        assert screen.wait() == 0
    assert gateway.requests[1]["messages"] == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "Hello there"},
        {"role": "user", "content": "again"},
    ]


def test_chat_ctrl_c_stops_the_answer_and_not_the_conversation(gateway: ScriptedGateway) -> None:
    gateway.blocks, gateway.hold = [event("A long st")], threading.Event()
    with terminal(gateway.url, "chat", "first") as screen:
        screen.read_until("> ")
        screen.type("tell me\n")
        screen.read_until("A long st")
        screen.type("\x03")
        screen.read_until("> ")
        assert gateway.client_left.wait(BOUND_S), "the connection was not closed"
        gateway.blocks, gateway.hold = [event("Fine."), DONE], None
        screen.type("go on\n")
        screen.read_until("Fine.")
        screen.read_until("> ")
        screen.type("\x04")
        assert screen.wait() == 0
    assert gateway.requests[1]["messages"][1] == {"role": "assistant", "content": "A long st"}


def test_chat_ctrl_c_at_the_prompt_drops_the_line(
    gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within one process: where the signal meets a prompt that has just been printed, readline sees it at the next key."""
    typed: list[str | type[BaseException]] = [KeyboardInterrupt, "hello", EOFError]

    def type_next(_prompt: str) -> str:
        entry = typed.pop(0)
        if isinstance(entry, str):
            return entry
        raise entry

    monkeypatch.setenv("INNKEEPER_URL", gateway.url)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", type_next)
    assert main(["chat", "first"]) == 0
    assert capsys.readouterr().out.endswith("\n\nHello there\n\n")
    assert [request["messages"] for request in gateway.requests] == [[{"role": "user", "content": "hello"}]]


def test_chat_goes_on_after_a_refusal(gateway: ScriptedGateway) -> None:
    gateway.status = 400
    with terminal(gateway.url, "chat", "first") as screen:
        screen.read_until("> ")
        screen.type("hello\n")
        screen.read_until("innkeeper: this model has no chat template")
        screen.read_until("> ")
        gateway.status = 200
        screen.type("hello again\n")
        screen.read_until("Hello there")
        screen.read_until("> ")
        screen.type("\x04")
        assert screen.wait() == 0
    assert gateway.requests[1]["messages"] == [{"role": "user", "content": "hello again"}]
