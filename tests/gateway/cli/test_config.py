"""``innkeeper config``: what is wrong with a file, and where a name's settings come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.header import GgufValueType
from gateway.cli import main
from tests.engines.helpers_gguf_bytes import WHOLE_LLAMA, pair, small_llama

SIM = 'source: "sim:", simulate: {weights: 1MiB}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.yaml"


def check(path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str], dict[str, Any]]:
    """The exit status, the lines for people without the file's name, and the report for programs."""
    path.write_text(text)
    status = main(["config", "check", "--registry", str(path)])
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    assert main(["config", "check", "--json", "--registry", str(path)]) == status
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["ok"] is (status == 0)
    return status, [line.removeprefix(f"{path}: ") for line in lines], report


def show(
    path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, Any], dict[str, tuple[Any, str]]]:
    assert main(["config", "show", name, "--json", "--registry", str(path)]) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown, {found["key"]: (found["value"], found["origin"]) for found in shown.pop("settings")}


def test_check_of_a_good_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines, report = check(path, f"profiles: {{p: {{}}, q: {{}}}}\nmodels: [{{id: a, {SIM}}}]", capsys)
    assert (status, lines) == (0, ["1 model, 2 profiles, no problem"])
    assert report == {"ok": True, "problems": [], "warnings": []}


def test_check_of_the_file_in_the_working_directory(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    assert main(["config", "check"]) == 1
    assert "there is no registry.yaml" in capsys.readouterr().err
    path.write_text("")
    assert main(["config", "check"]) == 0
    assert capsys.readouterr().out == "registry.yaml: 0 models, 0 profiles, no problem\n"


def test_check_lists_every_problem_by_its_key(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        f"sever: {{}}\nprofiles: {{a: {{sampling: {{temperature: 3}}}}, b: 1}}\nmodels: [{{id: a, {SIM}, contxt: 1}}]"
    )
    status, lines, report = check(path, text, capsys)
    assert status == 1
    keys = ["sever", "models[0].contxt", "profiles.a.sampling.temperature", "profiles.b"]
    assert [problem["key"] for problem in report["problems"]] == keys
    assert [line.split(": ")[0] for line in lines[:-1]] == keys
    assert lines[-1] == "how keys go together, and the files of its models, are looked at when that is mended"
    assert lines[0] == "sever: unknown key; did you mean server?"


def test_check_of_what_is_no_registry(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines, report = check(path, "{", capsys)
    assert status == 1 and lines[0].startswith("not valid YAML: ")
    assert report["problems"] == [{"key": None, "message": lines[0]}]
    path.unlink()
    assert main(["config", "check", "--registry", str(path)]) == 1
    assert capsys.readouterr().out == f"{path}: cannot be read: No such file or directory\n"


def test_check_reads_the_files_that_are_named(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path.parent / "good.gguf").write_bytes(small_llama(tensors=WHOLE_LLAMA))
    (path.parent / "torn.gguf").write_bytes(small_llama()[:100])
    (path.parent / "short.gguf").write_bytes(small_llama(tensors=WHOLE_LLAMA[1:]))
    sources = ("good.gguf", "torn.gguf", "none.gguf", "hf:org/no-such-repo@main/x.gguf", "short.gguf")
    models = "\n".join(f"  - {{id: m{i}, source: {json.dumps(source)}}}" for i, source in enumerate(sources))
    status, _, report = check(path, f"models:\n{models}", capsys)
    assert status == 1
    told = {problem["key"]: problem["message"] for problem in report["problems"]}
    assert list(told) == [f"models[{i}].source" for i in (1, 2, 3, 4)]
    assert "torn.gguf" in told["models[1].source"] and "no such file" in told["models[2].source"]
    assert (
        told["models[4].source"]
        == f"{path.parent / 'short.gguf'}: tensor 'token_embd.weight' is missing or not a matrix"
    )
    status, lines, _ = check(path, "profiles: {p: {chat_template: none.jinja}}", capsys)
    assert status == 1 and lines[0].startswith("profiles.p.chat_template: ") and "no such file" in lines[0]


def test_check_holds_a_model_to_the_task_it_is_given(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path.parent / "m.gguf").write_bytes(small_llama(tensors=WHOLE_LLAMA))
    models = "\n".join(
        f"  - {{id: m{i}, source: m.gguf, task: {task}}}" for i, task in enumerate(("text", "embedding", "stt"))
    )
    status, _, report = check(path, f"models:\n{models}", capsys)
    told = {problem["key"]: problem["message"] for problem in report["problems"]}
    assert status == 1 and list(told) == ["models[1].source", "models[2].source"]
    assert "the architecture 'llama' is not supported; these are: bert" in told["models[1].source"]
    assert told["models[2].source"].endswith("stt models in GGUF files cannot be run by this version")


def test_check_says_what_a_start_would_stumble_over(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "server: {host: 0.0.0.0}\nmemory: {device: 1GiB, budget: 1GiB}\n"
        'models: [{id: a, source: "sim:", simulate: {weights: 2GiB}, pin: true}]'
    )
    status, _, report = check(path, text, capsys)
    told = {problem["key"]: problem["message"] for problem in report["problems"]}
    assert status == 1 and list(told) == ["server.host", "models[0].source", "models[0].pin"]
    assert (
        told["models[0].source"]
        == "needs at least 2.0 GiB, and memory.budget is 1.0 GiB: every request for it is refused"
    )
    assert "no key is configured" in told["server.host"]
    assert told["models[0].pin"].startswith("the pinned models need at least 2.0 GiB")


def test_check_warns_of_what_is_hardly_meant(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metadata = [pair("general.sampling.temp", GgufValueType.FLOAT32, 9.0)]
    (path.parent / "m.gguf").write_bytes(small_llama(metadata, WHOLE_LLAMA))
    text = (
        "memory: {budget: 1000TiB}\nserver: {cors_origins: ['*', 'https://a.example:81', 'a.example', 'http://a/']}\n"
        "profiles: {p: {}}\nmodels: [{id: a, source: m.gguf, aliases: [b], context: 9999999}]\n"
        "rules: [{match: [a, b], profile: p}, {match: 'c*', profile: p}, {match: '?', profile: p}]"
    )
    status, lines, report = check(path, text, capsys)
    assert status == 0 and lines[-1] == "1 model, 1 profile, no problem"
    such = "https://app.example or http://localhost:3000"
    assert [(warning["key"], warning["message"]) for warning in report["warnings"][1:]] == [
        ("rules[0].match[1]", "'b' matches no model's id"),
        ("rules[1].match", "'c*' matches no model's id"),
        *(
            (f"server.cors_origins[{i}]", f"'{origin}' is no browser's origin, such as {such}")
            for i, origin in ((2, "a.example"), (3, "http://a/"))
        ),
        ("models[0].context", "9999999 is more than the file's 2048 tokens, which is what the model gets"),
        ("models[0].source", "general.sampling.temp is 9.0: expected `float` <= 2.0; not used"),
    ]
    assert report["warnings"][0]["key"] == "memory.budget" and "clamped to" in report["warnings"][0]["message"]
    assert lines[1] == "warning: rules[0].match[1]: 'b' matches no model's id"


REGISTRY = f"""
defaults: {{ttl_s: 900, sampling: {{top_k: 5}}, scheduling: {{prefill_tick_ms: 300, retention: 0.5}}, chat_template: t.jinja}}
profiles: {{base: {{system: "kind\x1b words"}}, p: {{extends: base, sampling: {{seed: -1}}}}}}
rules: [{{match: "a*", profile: base}}]
models:
  - {{id: a, {SIM}, aliases: [one], pin: true, scheduling: {{retention: 0.9}}, overrides: {{chat_template_kwargs: {{think: [1]}}}}}}
  - {{id: gone, source: gone.gguf}}
"""


def test_show_gives_each_value_and_its_origin(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text(REGISTRY.replace("\x1b", ""))
    (path.parent / "t.jinja").write_text("{{ messages }}")
    shown, settings = show(path, "one@p", capsys)
    assert shown == {"id": "a", "profile": "p", "profiles": ["base", "p"], "error": None}
    assert settings["sampling.top_k"] == (5, "defaults")
    assert settings["sampling.seed"] == (-1, "profile p")
    assert settings["sampling.temperature"] == (1.0, "built in")
    assert settings["system"] == ("kind words", "profile base")
    assert settings["chat_template"] == ("{{ messages }}", f"defaults ({path.parent / 't.jinja'})")
    assert settings["chat_template_kwargs.think"] == ([1], "overrides")
    assert settings["pin"] == (True, "model")
    assert settings["ttl_s"] == (900, "defaults")
    assert settings["preload"] == (False, "built in")
    assert settings["scheduling.retention"] == (0.9, "model")
    assert settings["scheduling.prefill_tick_ms"] == (300, "defaults")
    assert settings["scheduling.prefill_ratio"] == (None, "built in")
    _, settings = show(path, "a", capsys)
    assert settings["system"] == ("kind words", "rule a* (profile base)")
    assert "sampling.seed" not in settings


def test_show_for_people(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text(REGISTRY.replace("\x1b", "\\e"))
    (path.parent / "t.jinja").write_text("{{ messages }}\n" * 50)
    assert main(["config", "show", "gone@base", "--registry", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["id        gone", "profile   base", "profiles  base, p"]
    assert lines[3].startswith("unusable  ") and "no such file" in lines[3]
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[5:]}
    assert rows["setting"].split() == ["value", "origin"]
    assert rows["system"].split("  ")[0] == "kind� words"
    assert "…" in rows["chat_template"] and len(rows["chat_template"].split("  ")[0]) == 60


def test_show_of_a_name_that_is_none(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text(REGISTRY.replace("\x1b", "").replace("chat_template: t.jinja", ""))
    for name, said in (("b", "the registry has: a, gone"), ("a@x", "it has: base, p")):
        assert main(["config", "show", name, "--registry", str(path)]) == 1
        assert said in capsys.readouterr().err
