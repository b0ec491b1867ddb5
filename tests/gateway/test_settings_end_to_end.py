"""Request settings over real sockets, with a real worker of a simulated model: it counts the prompt's words and the answer's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.gateway.helpers_app import chat_body
from tests.gateway.helpers_house import House, house, rewrite

MODELS = """
models:
  - {id: a, source: "sim:", aliases: [alias], simulate: {weights: 1GiB}%s}
  - {id: b, source: "sim:", simulate: {weights: 1GiB, content: a}, profiles: []}
"""


def registry(rest: str, keys: str = "") -> str:
    return f"memory: {{budget: 10GiB, device: 16GiB}}\n{rest}\n{MODELS % keys}"


async def counted(running: House, model: str, **options: Any) -> tuple[int, int]:
    """Words of the prompt, of which one is the message, and of the answer."""
    answer = await running.http.post("/v1/chat/completions", json=chat_body(model=model, **options))
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"]


PROFILES = "profiles: {brief: {system: be brief, sampling: {max_tokens: %d}}, briefer: {extends: brief, system: hush}}"


async def test_settings_that_changed_apply_at_once_and_the_resident_stays(tmp_path: Path) -> None:
    path = tmp_path / "registry.yaml"
    async with house(registry("defaults: {sampling: {max_tokens: 5}}"), path=path) as running:
        assert await counted(running, "a") == (1, 5)

        async def reload(text: str) -> list[str]:
            rewrite(path, text)
            answer = (await running.http.post("/admin/registry/reload")).json()
            assert answer["reloaded"] == answer["added"] == answer["removed"] == answer["needs_restart"] == []
            updated: list[str] = answer["updated"]
            return updated

        assert await reload(registry(PROFILES % 3, ", profile: briefer")) == ["a", "b"]
        assert await counted(running, "a") == (2, 3)
        assert await counted(running, "alias@brief", max_tokens=2) == (3, 2)
        rule = "\nrules: [{match: '?', profile: brief}]"
        assert await reload(registry(PROFILES % 4 + rule, ', overrides: {system: "one two three"}')) == ["a", "b"]
        assert await counted(running, "a@briefer") == (4, 4)
        assert await counted(running, "b") == (3, 4)
        rewrite(path, registry("profiles: {brief: {extends: gone}}"))
        refused = await running.http.post("/admin/registry/reload")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "profiles.brief.extends")
        assert await counted(running, "a@briefer") == (4, 4)
        rows = {row["id"]: row for row in (await running.http.get("/admin/models")).json()["models"]}
    assert (rows["a"]["generation"], rows["a"]["loads"], rows["a"]["evictions"]) == (1, 1, 0)


async def test_models_tell_their_profiles_and_unknown_ones_are_404() -> None:
    async with house(registry(PROFILES % 3, ", profile: brief")) as running:
        listed = (await running.http.get("/v1/models")).json()["data"]
        assert [(model["id"], model["profile"], model["profiles"]) for model in listed] == [
            ("a", "brief", ["brief", "briefer"]), ("b", None, []),
        ]  # fmt: skip
        one = (await running.http.get("/v1/models/alias@briefer")).json()
        assert one == {**listed[0], "profile": "briefer"}
        for answer in (
            await running.http.get("/v1/models/b@brief"),
            await running.http.post("/v1/chat/completions", json=chat_body(model="b@brief")),
            await running.http.post("/admin/models/b@brief/load"),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
            assert "'b' has no profile 'brief'" in answer.json()["error"]["message"]
        loaded = await running.http.post("/admin/models/alias@briefer/load")
        assert loaded.json() == {"model": "a", "state": "loaded", "generation": 1}
