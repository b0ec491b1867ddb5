"""A catalog and its successor: what a reload reads again, and what stays."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest

from engines.detect import detect
from engines.wire import Task
from gateway.errors import ModelNotFound
from gateway.machine import Machine
from gateway.registry import model_files as module
from gateway.registry.catalog import Catalog
from gateway.registry.load import Registry, parse_registry
from tests.engines.helpers_gguf_bytes import small_llama

GIB = 1024**3
MACHINE = Machine("cpu", ram_bytes=16 * GIB, device_bytes=16 * GIB, cores=2)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The names of files whose headers were read."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.gguf").write_bytes(small_llama())
    seen: list[str] = []

    def watched(path: Path, task: Task | None) -> object:
        seen.append(path.name)
        return detect(path, task)

    monkeypatch.setattr(module, "detect", watched)
    return seen


def registry(directory: Path, one: str = "", two: str = "", rest: str = "") -> Registry:
    text = f"{rest}\nmodels:\n  - {{id: one, source: one.gguf{one}}}\n  - {{id: two, source: two.gguf{two}}}\n"
    return parse_registry(text, directory / "registry.yaml", machine=MACHINE)


def test_successor_reads_only_what_changed(tmp_path: Path, reads: list[str]) -> None:
    old = Catalog(registry(tmp_path))
    before = old.models
    assert reads == ["one.gguf", "two.gguf"]
    reads.clear()
    new = old.successor(registry(tmp_path, two=", context: 64"))
    assert reads == ["two.gguf"]
    assert new.models[0] == before[0]
    assert new.models[1].resident_key != before[1].resident_key
    assert old.models == before and reads == ["two.gguf"]


def test_successor_with_other_policies_and_settings_reads_no_file(tmp_path: Path, reads: list[str]) -> None:
    old = Catalog(registry(tmp_path))
    _ = old.models
    reads.clear()
    settings = "defaults: {ttl_s: 5, system: kind}\nprofiles: {p: {system: short}}"
    new = old.successor(registry(tmp_path, two=", profile: p, aliases: [second]", rest=settings))
    assert [model.policy.ttl_s for model in new.models] == [5, 5]
    assert [model.request.system for model in new.models] == ["kind", "short"]
    assert new.resolve("second@p") == new.models[1]
    assert new.models[0].resident_key == old.models[0].resident_key  # a policy is no load parameter
    assert [model.request.system for model in old.models] == [None, None]
    assert reads == []


def test_resolve_gives_the_same_object_until_something_changes(tmp_path: Path, reads: list[str]) -> None:
    catalog = Catalog(registry(tmp_path, rest="profiles: {p: {system: s}}"))
    plain, named = catalog.resolve("one"), catalog.resolve("one@p")
    assert (catalog.resolve("one"), catalog.resolve("one@p")) == (plain, named)
    assert catalog.resolve("one") is plain and catalog.resolve("one@p") is named
    assert reads == ["one.gguf"]
    os.utime(tmp_path / "one.gguf", ns=(1, 1))
    assert catalog.resolve("one@p") is not named and catalog.resolve("one").created == 0
    assert reads == ["one.gguf"] * 2
    catalog.replace(catalog.successor(registry(tmp_path, rest="profiles: {p: {system: t}}")))
    assert catalog.resolve("one@p").request.system == "t"
    assert reads == ["one.gguf"] * 2 + ["two.gguf"]


def test_settings_are_those_of_every_name_of_an_id(tmp_path: Path, reads: list[str]) -> None:
    rest = "profiles: {p: {system: p}, q: {system: q}, r: {system: r}}"
    catalog = Catalog(registry(tmp_path, one=", profile: p, profiles: [q]", rest=rest))
    assert {name: settings.system for name, settings in catalog.settings("one").items()} == {
        None: "p", "q": "q", "p": "p",
    }  # fmt: skip


def test_requests_have_the_priority_of_their_model(tmp_path: Path, reads: list[str]) -> None:
    catalog = Catalog(
        registry(tmp_path, two=", priority: batch", rest="defaults: {priority: interactive}\nprofiles: {p: {}}")
    )
    asked = [catalog.resolve(name).request.priority for name in ("one", "one@p", "two", "two@p")]
    assert asked == ["interactive", "interactive", "batch", "batch"]
    assert {settings.priority for settings in catalog.settings("two").values()} == {"batch"}


def test_replace_takes_the_successor_whole(tmp_path: Path, reads: list[str]) -> None:
    catalog = Catalog(registry(tmp_path))
    new = catalog.successor(registry(tmp_path, one=", aliases: [first]"))
    catalog.replace(new)
    reads.clear()
    assert catalog.resolve("first").id == "one"
    assert catalog.registry is new.registry
    assert reads == []


@pytest.mark.skipif(sys.platform == "darwin", reason="file names are UTF-8 there")
def test_resolve_refuses_paths_that_cannot_be_told_to_anyone(tmp_path: Path) -> None:
    directory = tmp_path / os.fsdecode(b"d\xff")
    directory.mkdir()
    (directory / "one.gguf").write_bytes(small_llama())
    for model in Catalog(registry(directory)).models:
        assert model.error is not None
        assert r"d\udcff" in model.error.message
        msgspec.json.encode(model.error.message)
        assert model.id == "two" or "not UTF-8; rename" in model.error.message


def test_resolve_does_not_echo_a_huge_name(tmp_path: Path, reads: list[str]) -> None:
    catalog = Catalog(registry(tmp_path))
    for name in ("x" * 100_000, "one@" + "x" * 100_000):
        with pytest.raises(ModelNotFound) as caught:
            catalog.resolve(name)
        assert len(caught.value.message) < 300


def test_resolve_names_the_source_of_a_path_that_is_none(tmp_path: Path, reads: list[str]) -> None:
    text = "models: [{id: a, source: ~no-such-user/m.gguf}]"
    model = Catalog(parse_registry(text, tmp_path / "registry.yaml", machine=MACHINE)).resolve("a")
    assert model.error is not None and "~no-such-user/m.gguf" in model.error.message
