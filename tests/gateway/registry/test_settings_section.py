"""One level of settings as it stands in the file: what is accepted, and what each mistake is answered with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from engines.text.tool_syntax import SYNTAXES
from gateway.errors import InvalidRequest
from gateway.protocols.text_options import read_template_kwargs, read_text_options
from gateway.registry.load import RegistryError, parse_registry
from gateway.registry.reasoning_settings import ReasoningSettings
from gateway.registry.request_schema import ToolSyntaxName
from tests.gateway.registry.helpers_settings import MACHINE, SIM, catalog_of, origins, problems_of

BOUNDS = {
    "temperature": (0, 2, 0.01),
    "top_p": (0, 1, 0.01),
    "top_k": (0, 2**31 - 1, 1),
    "min_p": (0, 1, 0.01),
    "seed": (-(2**63), 2**63 - 1, 1),
    "frequency_penalty": (-2, 2, 0.01),
    "presence_penalty": (-2, 2, 0.01),
    "repetition_penalty": (0.01, 10, 0.001),
    "max_tokens": (1, 2**31 - 1, 1),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_sampling_has_the_ranges_of_the_api(name: str) -> None:
    low, high, step = BOUNDS[name]
    for value in (low, high):
        read_text_options({name: value})
        catalog_of(defaults={"sampling": {name: value}})
    for value in (low - step, high + step):
        with pytest.raises(InvalidRequest):
            read_text_options({name: value})
        problem = problems_of(defaults={"sampling": {name: value}})[f"defaults.sampling.{name}"]
        assert "expected" in problem and f"found {value}" in problem


def test_sampling_is_all_that_a_request_may_say_but_the_bias() -> None:
    said = {name for name, value in BOUNDS.items() if getattr(read_text_options({name: value[0]}), name) is not None}
    assert said == set(BOUNDS)


@pytest.mark.parametrize("name", ["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"])
def test_kwargs_that_the_gateway_fills_are_refused_as_in_a_request(name: str) -> None:
    with pytest.raises(InvalidRequest):
        read_template_kwargs({name: 1})
    key = f"profiles.p.chat_template_kwargs.{name}"
    assert "the gateway fills it" in problems_of(profiles={"p": {"chat_template_kwargs": {name: 1}}})[key]


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("2024-01-01", "expected a value that JSON has (found datetime.date(2024, 1, 1)); in quotes it is text"),
        ("[{a: !!binary aGk=}]", "expected a value that JSON has (found b'hi')"),
        ("{a: [.nan]}", "expected a finite number (found nan)"),
        ("18446744073709551616", "expected an integer of 64 bits"),
        ('"\\ud800"', "half a surrogate pair"),
        ('{"\\ud800": 1}', "half a surrogate pair"),
        ("[" * 40 + "]" * 40, "nested more than 32 deep"),
        ("[&a [1, 1, 1], &b [*a, *a, *a, *a], &c [*b, *b, *b, *b], &d [*c, *c, *c, *c], &e [*d, *d, *d, *d],"
         " &f [*e, *e, *e, *e], [*f, *f, *f, *f]]", "more than 10000 values"),
    ],
)  # fmt: skip
def test_kwarg_that_is_no_json_is_refused(yaml: str, said: str) -> None:
    with pytest.raises(RegistryError, match=r"defaults\.chat_template_kwargs\.k: ") as caught:
        text = f"defaults: {{chat_template_kwargs: {{k: {yaml}}}}}"
        parse_registry(text, Path("/nowhere/registry.yaml"), machine=MACHINE)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("sections", "key", "said"),
    [
        ({"profiles": {"p": {"sampling": {"temprature": 1}}}}, "profiles.p.sampling.temprature", "mean temperature?"),
        ({"profiles": {"p": {"sampling": {"logit_bias": {}}}}}, "profiles.p.sampling.logit_bias", "only a request"),
        ({"profiles": {"p": {"temperature": 1}}}, "profiles.p.temperature", "under sampling"),
        ({"profiles": {"p": {"context": 9}}}, "profiles.p.context", "shares the loaded model"),
        ({"profiles": {"p": {"kv_bits": 8}}}, "profiles.p.kv_bits", "shares the loaded model"),
        ({"profiles": {"p": {"ttl_s": 9}}}, "profiles.p.ttl_s", "stands in the model"),
        ({"profiles": {"p": {"reasoning": {"budgets": 1}}}}, "profiles.p.reasoning.budgets", "mean budget?"),
        ({"defaults": {"reasoning": {"budget": -1}}}, "defaults.reasoning.budget", "expected `int` >= 0"),
        ({"defaults": {"reasoning": {"effort": "none"}}}, "defaults.reasoning.effort", "one of minimal, low, medium"),
        ({"defaults": {"reasoning": True}}, "defaults.reasoning", "expected `object`"),
        ({"defaults": {"tool_syntax": "x"}}, "defaults.tool_syntax", "hermes"),
        ({"defaults": {"top_p": 1}}, "defaults.top_p", "under sampling"),
        ({"defaults": {"sampling": {"top_k": 1.5}}}, "defaults.sampling.top_k", "expected `int`"),
        ({"defaults": {"sampling": {"top_p": True}}}, "defaults.sampling.top_p", "expected `float`"),
        ({"defaults": {"system": ""}}, "defaults.system", "length >= 1"),
        ({"defaults": {"system": "\ud800"}}, "defaults.system", "half a surrogate pair"),
        ({"defaults": {"chat_template": "{{\ud800"}}, "defaults.chat_template", "half a surrogate pair"),
        ({"models": [{**SIM, "overrides": {"tool_syntax": "x"}}]}, "models[0].overrides.tool_syntax", "one of command"),
        ({"models": [{**SIM, "tool_syntax": "hermes"}]}, "models[0].tool_syntax", "under the model's overrides"),
        ({"models": [{**SIM, "reasoning": {}}]}, "models[0].reasoning", "under the model's overrides"),
        ({"models": [{**SIM, "priority": "x"}]}, "models[0].priority", "one of interactive, normal, batch"),
        ({"models": [{**SIM, "overrides": {"context": 9}}]}, "models[0].overrides.context", "beside overrides"),
        ({"models": [{**SIM, "system": "x"}]}, "models[0].system", "under the model's overrides"),
        ({"models": [{**SIM, "top_k": 1}]}, "models[0].top_k", "under the model's overrides.sampling"),
        ({"models": [{**SIM, "overrides": None}]}, "models[0].overrides", "expected `object`"),
    ],
)
def test_mistake_names_its_key_and_the_way_out(sections: dict[str, Any], key: str, said: str) -> None:
    assert said in problems_of(**sections)[key]


def test_tool_syntaxes_are_those_of_the_engines() -> None:
    assert list(get_args(ToolSyntaxName)) == sorted(syntax.name for syntax in SYNTAXES)


def test_reasoning_and_tool_syntax_by_level_and_null_takes_away() -> None:
    catalog = catalog_of(
        defaults={"reasoning": {"enabled": True, "effort": "low", "budget": 100}, "tool_syntax": "hermes"},
        profiles={"p": {"reasoning": {"effort": None, "budget": 0, "split": False}, "tool_syntax": None}},
    )
    plain, other = catalog.resolve("m").request, catalog.resolve("m@p").request
    assert plain.reasoning == ReasoningSettings(enabled=True, effort="low", budget=100)
    assert plain.tool_syntax == "hermes"
    assert other.reasoning == ReasoningSettings(enabled=True, budget=0, split=False)
    assert other.tool_syntax is None
    assert origins(catalog, "m@p")["reasoning.budget"] == (0, "profile p")
    assert origins(catalog, "m")["tool_syntax"] == ("hermes", "defaults")
