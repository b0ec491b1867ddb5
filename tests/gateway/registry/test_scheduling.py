"""``scheduling`` in the registry: levels, ranges by key path, and that it is a load parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines.scheduling.settings import SchedulingSettings
from gateway.registry.catalog import Catalog, ResolvedModel
from gateway.registry.load import parse_registry
from gateway.registry.problems import RegistryError
from gateway.registry.schema import SchedulingSection
from tests.gateway.registry.helpers_settings import MACHINE


def models_of(defaults: str, *models: str) -> list[ResolvedModel]:
    entries = "\n".join(
        f'  - {{id: m{i}, source: "sim:", simulate: {{weights: 1GiB, content: one}}, {keys}}}'
        for i, keys in enumerate(models)
    )
    text = f"defaults: {{{defaults}}}\nmodels:\n{entries}\n"
    return list(Catalog(parse_registry(text, Path("/nowhere/registry.yaml"), machine=MACHINE)).models)


def test_scheduling_is_the_model_s_over_the_defaults_over_what_is_built_in() -> None:
    default = "scheduling: {retention: 0.5, prefill_ratio: 2, defer_ceiling_s: 5}"
    silent, own = models_of(
        default, "aliases: []", "scheduling: {prefill_ratio: auto, prefill_tick_ms: 100, retention: 0.9}"
    )
    assert silent.spec.scheduling == SchedulingSettings(retention=0.5, prefill_ratio=2.0, defer_ceiling_s=5.0)
    assert own.spec.scheduling == SchedulingSettings(retention=0.9, prefill_tick_ms=100, defer_ceiling_s=5.0)
    (plain,) = models_of("ttl_s: 1", "pin: false")
    assert plain.spec.scheduling == SchedulingSettings()


def test_scheduling_is_a_load_parameter() -> None:
    """Ids of one content share a resident only where they are scheduled alike, however that is written."""
    keys = ("aliases: []", "scheduling: {retention: 0.8}", "scheduling: {retention: 0.7}")
    same, written, other = (model.resident_key for model in models_of("ttl_s: 9", *keys))
    assert same == written != other
    below, *_ = models_of("scheduling: {retention: 0.7}", *keys)
    assert below.resident_key == other


def test_scheduling_of_changed_defaults_is_read_anew() -> None:
    texts = [
        f'defaults: {{scheduling: {{prefill_tick_ms: {ms}}}}}\nmodels: [{{id: m, source: "sim:", simulate: {{weights: 1}}}}]'
        for ms in (100, 200)
    ]
    first, second = (parse_registry(text, Path("/nowhere/registry.yaml"), machine=MACHINE) for text in texts)
    catalog = Catalog(first)
    before = catalog.resolve("m").spec.scheduling.prefill_tick_ms
    after = catalog.successor(second).resolve("m").spec.scheduling.prefill_tick_ms
    assert (before, after) == (100, 200)


@pytest.mark.parametrize(
    ("written", "key", "said"),
    [
        ("{retention: 1}", "retention", "expected `float` < 1.0 (found 1)"),
        ("{retention: 0}", "retention", "expected `float` > 0.0 (found 0)"),
        ("{retention: .nan}", "retention", "expected a finite number"),
        ("{retention: null}", "retention", "expected `float`"),
        ("{prefill_ratio: -1}", "prefill_ratio", "expected `float` >= 0.0 (found -1)"),
        ("{prefill_ratio: much}", "prefill_ratio", "much"),
        ("{prefill_tick_ms: 1001}", "prefill_tick_ms", "expected `int` <= 1000"),
        ("{prefill_tick_ms: 0}", "prefill_tick_ms", "expected `int` >= 1"),
        ("{prefill_tick_ms: 1.5}", "prefill_tick_ms", "expected `int`"),
        ("{prefill_deadline_s: -1}", "prefill_deadline_s", "expected `float` >= 0"),
        ("{defer_ceiling_s: soon}", "defer_ceiling_s", "expected `float`"),
        ("{retentoin: 0.5}", "retentoin", "unknown key; did you mean retention?"),
        ("fast", "", "expected `object`"),
    ],
)
@pytest.mark.parametrize("level", ["defaults", "models[0]"])
def test_scheduling_mistake_names_its_key(level: str, written: str, key: str, said: str) -> None:
    scheduling = f"scheduling: {written}"
    with pytest.raises(RegistryError) as caught:
        models_of(*((scheduling, "pin: false") if level == "defaults" else ("ttl_s: 1", scheduling)))
    assert caught.value.key == f"{level}.scheduling{'.' if key else ''}{key}"
    assert said in str(caught.value)


def test_scheduling_of_profiles_and_overrides_has_no_place() -> None:
    for text, key in (
        ("profiles: {p: {scheduling: {}}}", "profiles.p.scheduling"),
        ("models: [{id: m, source: x, overrides: {scheduling: {}}}]", "models[0].overrides.scheduling"),
    ):
        with pytest.raises(RegistryError) as caught:
            parse_registry(text, Path("/nowhere/registry.yaml"), machine=MACHINE)
        assert caught.value.key == key and "stands in the model" in str(caught.value)


def test_scheduling_keys_are_those_of_the_worker() -> None:
    assert SchedulingSection.__struct_fields__ == SchedulingSettings.__struct_fields__
    assert SchedulingSection().settings == SchedulingSettings()
    most: dict[str, Any] = {"retention": 0.99, "prefill_ratio": 1000.0, "prefill_tick_ms": 1000, "defer_ceiling_s": 1e9}
    settings = SchedulingSection(**most).settings
    assert msgspec.convert(msgspec.to_builtins(settings), SchedulingSettings) == settings
