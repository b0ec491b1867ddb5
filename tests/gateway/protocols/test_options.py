"""What refusals of options say: the name, what may be, what to use in its place."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import UnsupportedParameter
from gateway.protocols.ollama_options import read_model_options
from gateway.protocols.openai_chat import OPTIONS
from gateway.protocols.options import sort_options


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"temprature": 1}, "unknown parameter 'temprature'; did you mean 'temperature'?"),
        ({"zzz": 1}, "unknown parameter 'zzz'"),
        ({"prediction": {"type": "content"}}, "prediction is not supported"),
        ({"ignore_eos": True}, "ignore_eos: true is not supported; it may be false"),
        ({"modalities": ["text", "audio"]}, 'modalities: an array of 2 is not supported; it may be ["text"]'),
        ({"functions": [{"name": "f"}]}, "functions: an array of 1 is not supported; use tools"),
    ],
)
def test_refusal_says_what_may_be(body: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        sort_options(body, OPTIONS)
    assert (caught.value.message, caught.value.param) == (message, next(iter(body)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("foo", "unknown parameter 'options.foo'"),
        ("temprature", "unknown parameter 'options.temprature'; did you mean 'options.temperature'?"),
    ],
)
def test_option_within_an_object_is_compared_by_its_own_name(name: str, message: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        read_model_options({"options": {name: 1}})
    assert caught.value.message == message
