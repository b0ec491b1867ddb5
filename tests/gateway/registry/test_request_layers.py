"""Levels become one: against the plainest fold there is, whatever the levels hold."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.registry.request_layers import Layer, RequestSettings, explain_settings, resolve_settings
from tests.gateway.registry.helpers_settings import SIM, catalog_of

TEXTS = st.text("ab é\n{", min_size=1, max_size=3)


def numbers(low: int, high: int) -> st.SearchStrategy[float]:
    """Hundredths; YAML does not read 1e-05 as a number."""
    return st.integers(low * 100 + 1, high * 100).map(lambda hundredths: hundredths / 100)


SAMPLING = st.fixed_dictionaries(
    {},
    optional={
        "temperature": numbers(0, 2),
        "top_p": numbers(0, 1),
        "top_k": st.integers(0, 100),
        "seed": st.none() | st.integers(-(2**63), 2**63 - 1),
        "frequency_penalty": numbers(-2, 2),
        "presence_penalty": numbers(-2, 2),
        "repetition_penalty": numbers(0, 10),
        "max_tokens": st.none() | st.integers(1, 1000),
    },
)
VALUES = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | TEXTS | st.lists(st.integers(0, 9))
SECTIONS = st.fixed_dictionaries(
    {},
    optional={
        "sampling": SAMPLING,
        "system": st.none() | TEXTS,
        "chat_template": st.none() | st.just("{{ messages }}"),
        "chat_template_kwargs": st.dictionaries(st.sampled_from(["a", "b.c", "d"]), VALUES),
    },
)


def folded(sections: list[dict[str, Any]]) -> RequestSettings:
    """The reference: a plain loop over plain mappings."""
    sampling: dict[str, Any] = {}
    kwargs: dict[str, Any] = {}
    texts: dict[str, Any] = {"system": None, "chat_template": None}
    for section in sections:
        sampling |= section.get("sampling", {})
        kwargs |= section.get("chat_template_kwargs", {})
        texts |= {name: section[name] for name in texts if name in section}
    given = {name: value for name, value in sampling.items() if value is not None}
    if "seed" in given:
        given["seed"] = given["seed"] + 2**63 if given["seed"] < 0 else given["seed"]
    max_tokens = given.pop("max_tokens", None)
    return RequestSettings(given, texts["system"], texts["chat_template"], kwargs, max_tokens)


@settings(max_examples=50)
@given(st.lists(SECTIONS, min_size=5, max_size=5))
def test_settings_of_any_levels_are_their_fold(sections: list[dict[str, Any]]) -> None:
    defaults, rule, parent, profile, overrides = sections
    catalog = catalog_of(
        defaults=defaults,
        profiles={"r": rule, "parent": parent, "p": {"extends": "parent", **profile}},
        rules=[{"match": "?", "profile": "r"}],
        models=[{**SIM, "profile": "p", "overrides": overrides}],
    )
    assert catalog.resolve("m").request == folded(sections)
    # What is explained is what was resolved.
    told = {setting.key: setting.value for setting in catalog.explain("m")}
    assert resolve_settings([Layer("all", told)]) == catalog.resolve("m").request


def test_explain_gives_the_last_level_and_its_note() -> None:
    layers = [Layer("low", {"system": "a", "sampling.top_k": 1}, {"system": "file"}), Layer("high", {"system": "b"})]
    assert [(s.key, s.value, s.origin) for s in explain_settings(layers)] == [
        ("sampling.top_k", 1, "low"), ("system", "b", "high"),
    ]  # fmt: skip
    assert [s.origin for s in explain_settings(layers[:1])] == ["low", "low (file)"]
