"""The operator's commands against one gateway with simulated models, as its registry changes under it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.cli import main
from tests.gateway.cli.helpers_gateway import BOUND_S, Terminal, environment, innkeeper, scripted_gateway
from tests.gateway.cli.test_serve import serving

REGISTRY = """
memory: {budget: 10GiB, device: 16GiB}
models:
  - {id: org/a, source: "sim:", aliases: [first], simulate: {weights: 4GiB, tokens_per_s: 50}}
  - {id: b, source: "sim:", simulate: {weights: 7GiB}}
  - {id: huge, source: "sim:", simulate: {weights: 12GiB}}
  - {id: torn, source: "sim:", simulate: {weights: 1GiB, fail_load: the file is torn}}
"""


class Inn:
    """A gateway process, and commands run in this one."""

    def __init__(self, url: str, pid: int, registry: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self.pid = pid
        self.registry = registry
        self._capsys = capsys

    def run(self, *args: str) -> str:
        """The output of a command that does what it is asked."""
        assert main([*args]) == 0, self._capsys.readouterr().err
        said = self._capsys.readouterr()
        assert said.err == ""
        return said.out

    def json(self, *args: str) -> Any:
        return json.loads(self.run(*args, "--json"))

    def refused(self, *args: str) -> str:
        """What a command says that cannot."""
        assert main([*args]) == 1
        said = self._capsys.readouterr()
        assert said.out == "" and said.err.startswith("innkeeper: ") and said.err.count("\n") == 1
        return said.err


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int, Path]]:
    directory = tmp_path_factory.mktemp("inn")
    (directory / "registry.yaml").write_text(REGISTRY)
    with serving(cwd=directory, bound_s=10 * BOUND_S) as (url, process):
        yield url, process.pid, directory / "registry.yaml"


@pytest.fixture
def inn(
    gateway: tuple[str, int, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Inn]:
    """With nothing in memory, nothing pinned and the first registry."""
    url, pid, registry = gateway
    monkeypatch.setenv("INNKEEPER_URL", url)
    monkeypatch.delenv("INNKEEPER_API_KEY", raising=False)
    yield Inn(url, pid, registry, capsys)
    registry.write_text(REGISTRY)
    with httpx.Client(base_url=f"{url}/admin", timeout=BOUND_S) as client:
        client.post("/registry/reload").raise_for_status()
        for model in client.get("/models").json()["models"]:
            if model["state"] != "unloaded":
                client.post(f"/models/{model['id']}/unload", json={"mode": "force"}).raise_for_status()
            if model["pinned"]:
                client.post(f"/models/{model['id']}/unpin").raise_for_status()


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_load_ps_and_unload(inn: Inn) -> None:
    assert inn.run("ps").splitlines() == ["nothing is in memory", "", "budget: 0 B of 10.0 GiB charged"]
    assert inn.run("load", "first") == "org/a is loaded\n"
    head, row, *_, budget = words(inn.run("ps"))
    assert head == ["model", "state", "charged", "measured", "leases", "waiting", "idle", "pid"]
    assert row[:6] == ["org/a", "loaded", "4.0", "GiB", "4.0", "GiB"] and row[-1].isdecimal()
    assert budget == ["budget:", "4.0", "GiB", "of", "10.0", "GiB", "charged"]
    assert len(words(inn.run("ps", "--all"))) == 4 + 3
    assert inn.json("ps")["models"][0]["state"] == "loaded"
    assert inn.run("unload", "org/a") == "org/a is unloaded\n"
    assert inn.json("unload", "org/a") == {
        "model": "org/a", "state": "unloaded", "generation": inn.json("ps")["models"][0]["generation"], "waited_for": [],
    }  # fmt: skip


def test_load_that_cannot_be_says_why(inn: Inn) -> None:
    assert "the whole budget is 10.0 GiB" in inn.refused("load", "huge")
    assert "the file is torn" in inn.refused("load", "torn")
    assert "the registry has: org/a, b, huge, torn" in inn.refused("load", "nobody")


def test_ps_shows_a_failure_and_who_waits(inn: Inn) -> None:
    inn.refused("load", "torn")
    while "failed" not in inn.run("ps"):
        pass  # the load is answered before its worker is gone
    with httpx.Client(base_url=inn.url, timeout=BOUND_S) as client, _streaming(client):
        waiting = threading.Thread(target=httpx.post, args=(f"{inn.url}/admin/models/b/load",), kwargs={"timeout": 60})
        waiting.start()
        while not inn.json("ps")["queue"]:
            pass
        shown = inn.run("ps")
        inn.run("unload", "org/a", "--mode", "abort")
        waiting.join(BOUND_S)
    assert "failed" in shown and "the file is torn" in shown
    assert ["1", "b"] in [line[:2] for line in words(shown)]


class _streaming:
    """An endless answer of ``org/a`` under way."""

    def __init__(self, client: httpx.Client) -> None:
        body = {"model": "org/a", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
        self._answer = client.stream("POST", "/v1/chat/completions", json=body, timeout=BOUND_S)

    def __enter__(self) -> None:
        self._lines = self._answer.__enter__().iter_lines()  # kept: its end would close the stream
        next(self._lines)

    def __exit__(self, *exc: Any) -> None:
        self._answer.__exit__(*exc)


def test_unload_says_what_else_could_be_done(inn: Inn) -> None:
    with httpx.Client(base_url=inn.url, timeout=BOUND_S) as client, _streaming(client):
        busy = inn.refused("unload", "org/a", "--deadline", "0.1")
        assert "is still in use by lease-" in busy and "--mode abort" in busy
        assert "waited for lease-" in inn.run("unload", "org/a", "--mode", "abort")


@pytest.mark.parametrize("deadline", ["-1", "soon", "nan", "1e9"])
def test_unload_with_a_wrong_deadline_is_wrong_usage(deadline: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["unload", "a", f"--deadline={deadline}"])
    assert caught.value.code == 2
    assert "0 to 86400" in capsys.readouterr().err


def test_pin_and_unpin(inn: Inn) -> None:
    assert inn.run("pin", "first") == "org/a is pinned (unloaded)\n"
    inn.run("load", "org/a")
    assert "pinned" in words(inn.run("ps"))[1]
    assert "pinned by 'org/a'" in inn.refused("unload", "org/a")
    assert inn.json("unpin", "org/a") == {"model": "org/a", "state": "loaded", "generation": 1, "pinned": False} | {
        "generation": inn.json("ps")["models"][0]["generation"]
    }
    assert inn.run("unload", "org/a") == "org/a is unloaded\n"


def test_plan_explains(inn: Inn) -> None:
    inn.run("load", "org/a")
    shown = dict(line.split(maxsplit=1) for line in inn.run("plan", "b").splitlines() if not line.startswith("waits"))
    assert shown["model"] == "b (unloaded)"
    assert shown["plan"].startswith("evict:") and shown["evicts"] == "org/a" and shown["fits"] == "yes"
    assert shown["rule"].startswith("lru:") and shown["charged"].startswith("7.0 GiB")
    assert inn.json("plan", "first")["action"] == "lease"
    assert "model_too_large: " in inn.run("plan", "huge")
    assert "the registry has" in inn.refused("plan", "nobody")


CAPACITY = """
memory: {budget: 10GiB, device: 16GiB}
models:
  - id: org/a
    source: "sim:"
    context: 4096
    concurrency: 4
    kv_grant: 64MiB
    simulate: {weights: 1GiB, kv_per_token: 8KiB}
  - {id: vectors, source: "sim:", simulate: {weights: 1GiB, task: embedding}}
"""


def test_capacity_is_an_estimate_until_the_model_is_loaded(inn: Inn) -> None:
    inn.registry.write_text(CAPACITY)
    inn.run("reload")
    before = inn.json("capacity", "org/a")
    deepest = [(row["rows"], row["tokens"]) for row in before.pop("rows")]
    assert before == {
        "model": "org/a", "state": "unloaded", "estimate": True, "context": 4096, "grant_bytes": 64 << 20, "width": None,
        "queue_limit": 64,
    }  # fmt: skip
    assert [rows for rows, _ in deepest] == [1, 2, 4, 8, 16, 32] and deepest[0] == (1, 4096)
    assert all(0 < tokens * rows <= 8192 for rows, tokens in deepest)  # 64 MiB at 8 KiB a token
    text = inn.run("capacity", "org/a")
    assert "from the file's header" in text and words(text)[-1] == ["32", str(deepest[-1][1])]
    inn.run("load", "org/a")
    after = inn.json("capacity", "org/a")
    assert (after["state"], after["estimate"], after["grant_bytes"]) == ("loaded", False, 64 << 20)
    assert after["queue_limit"] == max(16, 2 * after["width"])
    text = inn.run("capacity", "org/a")
    assert "estimate" not in text and f"{after['width']} rows decoded together at most" in text
    inn.registry.write_text(CAPACITY.replace("64MiB", "1MiB"))
    inn.run("reload")
    assert words(inn.run("capacity", "org/a"))[-1] == ["32", "do", "not", "fit"]
    assert "vectors has no capacity to show: a model for embedding" in inn.refused("capacity", "vectors")
    assert "the registry has: org/a, vectors" in inn.refused("capacity", "nobody")


def test_leases_are_listed_and_cancelled(inn: Inn) -> None:
    assert inn.run("leases") == "no leases: nobody uses a model now\n"
    with httpx.Client(base_url=inn.url, timeout=BOUND_S) as client, _streaming(client):
        head, row = words(inn.run("leases"))
        assert head == ["lease", "model", "generation", "age", "client", "route"]
        assert row[1] == "org/a" and row[-1] == "/v1/chat/completions"
        assert inn.run("leases", "--cancel", row[0]) == f"{row[0]} of org/a is cancelled\n"
        while inn.json("leases")["leases"]:
            pass
    assert f"there is no lease {row[0]!r}" in inn.refused("leases", "--cancel", row[0])


def test_events_print_transitions_until_interrupted(inn: Inn) -> None:
    assert "there is no model 'nobody'" in inn.refused("events", "--model", "nobody")
    terminal = Terminal(environment(inn.url), "events", "--model", "first")
    try:
        # Until the command watches, what happens is not shown: load and unload until something is.
        shown = threading.Event()

        def stir() -> None:
            while not shown.is_set():
                httpx.post(f"{inn.url}/admin/models/b/load", timeout=BOUND_S)
                httpx.post(f"{inn.url}/admin/models/org/a/load", timeout=BOUND_S)

        stirring = threading.Thread(target=stir)
        stirring.start()
        try:
            line = terminal.read_until("charged)")
        finally:
            shown.set()
            stirring.join(BOUND_S)
        assert "org/a  " in line and "->" in line and "  b  " not in line
        terminal.type("\x03")
        assert terminal.wait() == 130
    finally:
        terminal.close()


def test_events_as_json_end_with_the_stream() -> None:
    transition = {"at": 1.5, "model": "a", "from": "unloaded", "to": "loading", "cause": "request", "charged_bytes": 7}
    warning = {"at": 2.5, "message": "the disk is full\x1b[31m"}
    blocks = b": keep-alive\n\n"
    for name, data in (("transition", transition), ("warning", warning)):
        blocks += f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
    with scripted_gateway() as gateway:
        gateway.pages["/admin/events"] = blocks
        as_json = innkeeper("events", "--json", url=gateway.url)
        plain = innkeeper("events", url=gateway.url)
    assert [json.loads(line) for line in as_json.stdout.splitlines()] == [
        {"event": "transition", **transition}, {"event": "warning", **warning},
    ]  # fmt: skip
    assert plain.stdout.splitlines()[0].endswith("  a  unloaded -> loading  (request, 7 B charged)")
    assert "warning: the disk is full" in plain.stdout and "\x1b" not in plain.stdout
    assert (as_json.returncode, plain.returncode) == (0, 0)


def test_reload_says_what_changed(inn: Inn) -> None:
    assert inn.run("reload") == "nothing changed\n"
    changed = REGISTRY.replace("id: b", "id: c").replace("tokens_per_s: 50", "tokens_per_s: 60")
    inn.registry.write_text(f"server: {{port: 1}}\n{changed}")
    assert inn.run("reload").splitlines() == [
        "c: added",
        "b: removed",
        "org/a: load settings changed, loaded anew when it is asked for",
        "server.port: changed in the file, and waits for a restart",
    ]
    inn.registry.write_text("models: [{id: x, source: 'sim:', simulate: {weight: 1}}]")
    assert "models[0].simulate.weight: unknown key; did you mean weights?" in inn.refused("reload")
    assert inn.json("ps")["models"][1]["id"] == "c"


def test_sighup_reloads_as_the_command_does(inn: Inn) -> None:
    inn.registry.write_text(REGISTRY + '  - {id: late, source: "sim:", simulate: {weights: 1GiB}}\n')
    os.kill(inn.pid, signal.SIGHUP)
    with httpx.Client(base_url=inn.url, timeout=BOUND_S) as client:
        while client.get("/v1/models/late").status_code != 200:
            pass
        inn.registry.write_text("models: nonsense")
        os.kill(inn.pid, signal.SIGHUP)
        assert client.get("/v1/models/late").status_code == 200
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "command", ["ps", "load x", "unload x", "pin x", "unpin x", "plan x", "capacity x", "leases", "events", "reload"]
)
def test_commands_say_what_to_do_without_a_gateway_a_key_or_a_scope(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INNKEEPER_URL", "http://127.0.0.1:9")
    assert main(command.split()) == 1
    assert "no gateway answers at http://127.0.0.1:9: start one with `innkeeper serve`" in capsys.readouterr().err
    with scripted_gateway() as gateway:
        monkeypatch.setenv("INNKEEPER_URL", gateway.url)
        for status, code, told in (
            (401, "invalid_api_key", "(set INNKEEPER_API_KEY)"),
            (403, "insufficient_scope", "(set INNKEEPER_API_KEY to a key that has it)"),
        ):
            gateway.refusal = status, {"error": {"message": "no", "code": code}}
            assert main(command.split()) == 1
            assert capsys.readouterr().err == f"innkeeper: no {told}\n"
