"""Profiles, rules, defaults and overrides: which settings a name gets, and which level each comes from."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from engines.header import GgufValueType
from gateway.errors import ModelNotFound
from gateway.protocols import openai_chat
from gateway.registry.catalog import Catalog
from tests.engines.helpers_gguf_bytes import pair, small_llama
from tests.gateway.registry.helpers_settings import SIM, catalog_of, origins, problems_of

LEVELS = ("family", "defaults", "first rule", "second rule", "parent", "profile", "overrides", "request")
ORIGINS = {
    "family": "family defaults (general.sampling.temp)",
    "defaults": "defaults",
    "first rule": "rule * (profile first)",
    "second rule": "rule mod* (profile second)",
    "parent": "profile parent",
    "profile": "profile child",
    "overrides": "overrides",
}
TEMPERATURES = {level: round(0.1 * (place + 1), 1) for place, level in enumerate(LEVELS)}


def at_levels(directory: Path, *levels: str) -> Catalog:
    """A registry of every level, with a temperature at these; the model is ``model``, its profile ``child``."""

    def sampling(level: str) -> dict[str, Any]:
        return {"sampling": {"temperature": TEMPERATURES[level]}} if level in levels else {}

    metadata = [pair("general.sampling.temp", GgufValueType.FLOAT32, TEMPERATURES["family"])]
    (directory / "model.gguf").write_bytes(small_llama(metadata if "family" in levels else ()))
    return catalog_of(
        directory / "registry.yaml",
        defaults=sampling("defaults"),
        profiles={
            "first": sampling("first rule"),
            "second": sampling("second rule"),
            "parent": sampling("parent"),
            "child": {"extends": "parent", **sampling("profile")},
        },
        rules=[
            {"match": "*", "profile": "first"},
            {"match": ["other", "mod*"], "profile": "second"},
            {"match": "m", "profile": "child"},
        ],
        models=[{"id": "model", "source": "model.gguf", "overrides": sampling("overrides")}],
    )


def requested(catalog: Catalog, name: str, **options: Any) -> float:
    """The temperature of a chat request for this name, as the worker gets it."""
    body = {"model": name, "messages": [{"role": "user", "content": "hello"}], **options}
    (request,) = openai_chat.parse(json.dumps(body).encode()).ask.text_requests(
        catalog.resolve(name).request, iter(range(9))
    )
    return request.sampling.temperature


@pytest.mark.parametrize("level", LEVELS[:-1])
def test_level_alone_decides_and_is_the_origin(tmp_path: Path, level: str) -> None:
    catalog = at_levels(tmp_path, level)
    assert requested(catalog, "model@child") == TEMPERATURES[level]
    assert origins(catalog, "model@child") == {"sampling.temperature": (TEMPERATURES[level], ORIGINS[level])}


@pytest.mark.parametrize(("lower", "upper"), list(itertools.pairwise(LEVELS)))
def test_level_above_wins(tmp_path: Path, lower: str, upper: str) -> None:
    catalog = at_levels(tmp_path, lower, upper)
    options = {"temperature": TEMPERATURES[upper]} if upper == "request" else {}
    assert requested(catalog, "model@child", **options) == TEMPERATURES[upper]


def test_no_level_is_the_fallback(tmp_path: Path) -> None:
    catalog = at_levels(tmp_path)
    assert requested(catalog, "model") == 1.0
    assert origins(catalog, "model@child") == {}


def test_profile_of_the_request_takes_the_place_of_the_models_own() -> None:
    catalog = catalog_of(
        profiles={"own": {"system": "own", "sampling": {"top_k": 1}}, "other": {"system": "other"}},
        models=[{**SIM, "profile": "own"}],
    )
    own, other = catalog.resolve("m"), catalog.resolve("m@other")
    assert (own.profile, own.request.system, own.request.sampling) == ("own", "own", {"top_k": 1})
    assert (other.profile, other.request.system, other.request.sampling) == ("other", "other", {})
    assert own == catalog.resolve("m@own")


def test_rules_apply_in_file_order_to_ids_alone() -> None:
    catalog = catalog_of(
        profiles={"one": {"system": "one", "sampling": {"top_k": 1}}, "two": {"system": "two"}},
        rules=[{"match": "org/*", "profile": "two"}, {"match": ["*/big", "Org"], "profile": "one"}],
        models=[{**SIM, "id": "org/big"}, {**SIM, "id": "org/small"}, {**SIM, "id": "org", "aliases": ["org/x"]}],
    )
    requests = {model.id: model.request for model in catalog.models}
    assert (requests["org/big"].system, requests["org/big"].sampling) == ("one", {"top_k": 1})
    assert (requests["org/small"].system, requests["org/small"].sampling) == ("two", {})
    assert (requests["org"].system, requests["org"].sampling) == (None, {})


def test_kwargs_merge_by_key_and_null_takes_away() -> None:
    catalog = catalog_of(
        defaults={
            "system": "be kind", "sampling": {"seed": 7, "top_p": 0.5}, "chat_template": "{{ 1 }}",
            "chat_template_kwargs": {"a": {"x": 1}, "b": 2},
        },
        models=[
            {
                **SIM,
                "overrides": {
                    "system": None, "sampling": {"seed": None}, "chat_template": None,
                    "chat_template_kwargs": {"a": {"y": 1}, "c": None},
                },
            }
        ],
    )  # fmt: skip
    request = catalog.resolve("m").request
    assert (request.system, request.chat_template, request.sampling) == (None, None, {"top_p": 0.5})
    assert request.chat_template_kwargs == {"a": {"y": 1}, "b": 2, "c": None}


def test_names_of_an_id_share_its_resident_and_so_do_ids_of_other_settings(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(small_llama())
    catalog = catalog_of(
        tmp_path / "registry.yaml",
        profiles={"p": {"system": "s"}},
        models=[
            {"id": "a", "source": "m.gguf", "aliases": ["alias"]},
            {"id": "b", "source": "m.gguf", "profile": "p", "overrides": {"sampling": {"top_k": 3}}},
        ],
    )
    models = [catalog.resolve(name) for name in ("a", "a@p", "alias@p", "b")]
    assert len({model.resident_key for model in models}) == 1
    assert [(model.id, model.request.system) for model in models] == [("a", None), ("a", "s"), ("a", "s"), ("b", "s")]


def test_profiles_of_a_model_are_those_it_lists_and_its_own() -> None:
    catalog = catalog_of(
        profiles={"a": {}, "b": {}, "c": {}},
        models=[SIM, {**SIM, "id": "some", "profiles": ["c"], "profile": "b"}, {**SIM, "id": "none", "profiles": []}],
    )
    assert [model.profiles for model in catalog.models] == [("a", "b", "c"), ("c", "b"), ()]
    for name, said in [
        ("some@a", "it has: c, b"), ("none@a", "it has none"), ("m@", "it has: a, b, c"), ("m@a@b", "'a@b'"),
    ]:  # fmt: skip
        with pytest.raises(ModelNotFound, match=said):
            catalog.resolve(name)
    with pytest.raises(ModelNotFound, match="there is no model"):
        catalog.resolve("@a")


@pytest.mark.parametrize(
    ("sections", "key", "said"),
    [
        ({"profiles": {"a": {"extends": "b"}}}, "profiles.a.extends", "there is no profile 'b'"),
        ({"profiles": {"a": {"extends": "a"}}}, "profiles.a.extends", "a → a"),
        ({"profiles": {"a": {"extends": "b"}, "b": {"extends": "a"}}}, "profiles.b.extends", "b → a → b"),
        ({"profiles": {"coder": {}}, "rules": [{"match": "*", "profile": "codr"}]}, "rules[0].profile", "mean coder?"),
        ({"models": [{**SIM, "profile": "x"}]}, "models[0].profile", "there are no profiles"),
        ({"profiles": {"a": {}}, "models": [{**SIM, "profiles": ["a", "x"]}]}, "models[0].profiles[1]", "profiles: a"),
        ({"profiles": {"a b": {}}}, "profiles.a b", "1 to 64 letters"),
        ({"profiles": {"a:b": {}}}, "profiles.a:b", "1 to 64 letters"),
        ({"profiles": []}, "profiles", "expected `object`"),
        ({"profiles": {"a": None}}, "profiles.a", "expected `object`"),
        ({"rules": {}}, "rules", "expected `array`"),
        ({"rules": [{"profile": "a"}]}, "rules[0]", "missing required field `match`"),
        ({"rules": [{"match": [], "profile": "a"}]}, "rules[0].match", "length >= 1"),
    ],
)
def test_mistake_names_its_key(sections: dict[str, Any], key: str, said: str) -> None:
    assert said in problems_of(**sections)[key]


def test_extends_into_a_cycle_is_told_of_the_cycle_alone() -> None:
    profiles = {"a": {"extends": "b"}, "b": {"extends": "a"}, "outside": {"extends": "a"}}
    assert list(problems_of(profiles=profiles)) == ["profiles.a.extends", "profiles.b.extends"]
