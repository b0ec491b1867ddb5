"""The ranges of what an operator may set."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engines.scheduling.settings import SchedulingSettings


def test_settings_have_defaults_and_survive_the_wire() -> None:
    settings = SchedulingSettings(retention=0.5, prefill_ratio=2.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(settings), type=SchedulingSettings) == settings
    assert msgspec.convert({}, SchedulingSettings) == SchedulingSettings()


@pytest.mark.parametrize(
    "wrong",
    [
        {"retention": 0.0},
        {"retention": 1.0},
        {"prefill_ratio": -0.1},
        {"prefill_tick_ms": 0},
        {"prefill_tick_ms": 1001},
        {"prefill_deadline_s": -1.0},
        {"defer_ceiling_s": -1.0},
        {"pace": 1},
    ],
)
def test_settings_out_of_range_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match=next(iter(wrong))):
        msgspec.convert(wrong, SchedulingSettings)
