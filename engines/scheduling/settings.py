"""What an operator may set of scheduling, for each model. Everything else is a constant beside its policy."""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = ["SchedulingSettings"]


class SchedulingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ranges are checked where the settings are read, not by the constructor.

    Attributes:
        retention: the share of its speed that a running stream keeps while a prompt is read beside it; 0 < r < 1.
        prefill_ratio: seconds of decoding for each second of prefill beside it; None: worked out from ``retention``.
        prefill_tick_ms: what a chunk of prefill aims to last, in milliseconds.
        prefill_deadline_s: once pacing has held a prompt back for so many seconds in all, prefill takes half of the time.
        defer_ceiling_s: once a row has been deferred for so many seconds, what rows hold now decides and not what they
            may grow to.
    """

    retention: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.8
    prefill_ratio: Annotated[float, msgspec.Meta(ge=0, le=1000)] | None = None
    prefill_tick_ms: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 700
    prefill_deadline_s: Annotated[float, msgspec.Meta(ge=0)] = 60.0
    defer_ceiling_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
