"""A registry file that changed: what a reload says and takes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.registry.catalog import Catalog
from gateway.registry.load import RegistryError, parse_registry, single_model_registry
from gateway.residency.reload import Reload, needs_restart, read_changes
from tests.engines.helpers_gguf_bytes import small_llama
from tests.gateway.helpers_house import rewrite
from tests.gateway.residency.helpers_residency import GIB, MACHINE, sim

A, B = sim("a"), sim("b")


def catalog(path: Path, text: str) -> Catalog:
    path.write_text(text)
    return Catalog(parse_registry(text, path, machine=MACHINE))


def models(*lines: str, rest: str = "") -> str:
    return f"{rest}\nmodels:\n" + "\n".join(lines) + "\n"


async def changes(path: Path, before: str, after: str) -> Reload:
    old = catalog(path, before)
    rewrite(path, after)
    _, reload = await read_changes(old, old.registry.settings, 10 * GIB)
    return reload


async def test_reload_sorts_ids_by_what_changed(tmp_path: Path) -> None:
    reload = await changes(
        tmp_path / "r.yaml",
        models(A, B, sim("c"), sim("d"), sim("e")),
        models(
            A,
            sim("b", simulate="weights: 5GiB"),
            sim("c", keys="aliases: [see]"),
            sim("d", keys="ttl_s: 5"),
            sim("f"),
        ),
    )
    assert reload == Reload(added=("f",), removed=("e",), reloaded=("b",), updated=("c", "d"), needs_restart=())


async def test_reload_of_the_same_file_changes_nothing(tmp_path: Path) -> None:
    assert await changes(tmp_path / "r.yaml", models(A, B), models(A, B)) == Reload((), (), (), (), ())


async def test_reload_names_the_ids_whose_settings_changed_under_any_name(tmp_path: Path) -> None:
    (tmp_path / "x.jinja").write_text("{{ 1 }}")
    profiles = "profiles: {{p: {{system: {}}}, q: {{chat_template: x.jinja}}}}\nrules: [{{match: {}, profile: p}}]"
    lines = (
        sim("a", keys="profile: p"), sim("b", keys="profiles: [p]"), sim("c", keys="profiles: []"),
        sim("d", keys="profiles: [q]"),
    )  # fmt: skip
    path = tmp_path / "r.yaml"
    before = models(*lines, rest=profiles.format("one", "z"))
    assert (await changes(path, before, models(*lines, rest=profiles.format("two", "z")))).updated == ("a", "b")
    assert (await changes(path, before, models(*lines, rest=profiles.format("one", "c")))).updated == ("c",)
    old = catalog(path, before)
    (tmp_path / "x.jinja").write_text("{{ 2 }}")
    successor, reload = await read_changes(old, old.registry.settings, 10 * GIB)
    assert reload == Reload((), (), (), ("a", "d"), ())  # a may be asked for with any profile
    assert [inn.resolve("d@q").request.chat_template for inn in (old, successor)] == ["{{ 1 }}", "{{ 2 }}"]
    (tmp_path / "x.jinja").unlink()
    with pytest.raises(RegistryError, match=r"profiles\.q\.chat_template"):
        await read_changes(old, old.registry.settings, 10 * GIB)


async def test_reload_reports_what_needs_a_restart(tmp_path: Path) -> None:
    reload = await changes(
        tmp_path / "r.yaml",
        models(A, rest="server: {port: 1}\nmemory: {budget: 8GiB}"),
        models(
            A,
            rest="server: {port: 2, max_body: 1MiB, api_keys: [k]}\nmemory: {budget: 9GiB, policy: largest}\n"
            "workers: {spare: 0}",
        ),
    )
    assert reload.needs_restart == (
        "server.port", "server.api_keys", "server.max_body", "memory.budget", "memory.policy", "workers.spare",
    )  # fmt: skip
    assert reload.updated == ()


async def test_reload_of_an_invalid_file_names_the_key(tmp_path: Path) -> None:
    for text, key in [
        (models(A, "  - {id: b}"), "models[1]"),
        (models(A, sim("b", simulate="weights: lots")), "models[1].simulate.weights"),
        (models(A, rest="sever: {}"), "sever"),
        ("models: [", None),
    ]:
        with pytest.raises(RegistryError) as caught:
            await changes(tmp_path / "r.yaml", models(A), text)
        assert caught.value.key == key
        assert key is None or key in str(caught.value)


async def test_reload_of_a_file_that_is_gone(tmp_path: Path) -> None:
    old = catalog(tmp_path / "r.yaml", models(A))
    (tmp_path / "r.yaml").unlink()
    with pytest.raises(RegistryError, match="No such file"):
        await read_changes(old, old.registry.settings, 10 * GIB)


async def test_reload_with_pins_above_the_running_budget_is_refused(tmp_path: Path) -> None:
    pinned = models(sim("a", simulate="weights: 11GiB", keys="pin: true"), rest="memory: {budget: 12GiB}")
    with pytest.raises(RegistryError, match=r"models\[0\]\.pin.*11\.0 GiB"):
        await changes(tmp_path / "r.yaml", models(A), pinned)


async def test_reload_takes_no_real_model_into_a_rehearsal(tmp_path: Path) -> None:
    real = models(A, "  - {id: real, source: ./real.gguf}")
    with pytest.raises(RegistryError, match=r"memory\.device") as caught:
        await changes(tmp_path / "r.yaml", models(A, rest="memory: {device: 64GiB}"), real)
    assert caught.value.key == "memory.device"


async def test_reload_of_one_model_says_that_there_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(small_llama())
    old = Catalog(single_model_registry(tmp_path / "tiny.gguf", machine=MACHINE))
    with pytest.raises(RegistryError, match="--model"):
        await read_changes(old, old.registry.settings, 10 * GIB)


def test_needs_restart_compares_with_the_start_and_not_with_the_last_reload() -> None:
    first = parse_registry("server: {port: 1}", Path("r.yaml"), machine=MACHINE).settings
    second = parse_registry("server: {port: 2}", Path("r.yaml"), machine=MACHINE).settings
    assert needs_restart(first, second) == ("server.port",)
    assert needs_restart(first, first) == ()
