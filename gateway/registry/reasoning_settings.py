"""What a level of settings, or a request, says about thinking before the answer."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from engines.wire import Reasoning

__all__ = ["EFFORTS", "Effort", "ReasoningSettings"]

Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)


class ReasoningSettings(msgspec.Struct, frozen=True, kw_only=True):
    """None leaves a value to the level below, at the lowest to the model's template.

    Attributes:
        enabled: whether to think.
        effort: how much, for templates that can be told.
        budget: tokens of thinking after which it is closed.
        split: whether thinking comes apart from the answer's text; built in: it does.
    """

    enabled: bool | None = None
    effort: str | None = None
    budget: int | None = None
    split: bool | None = None

    def over(self, below: ReasoningSettings) -> ReasoningSettings:
        """This level's values, and those of the one below where it is silent. To ask for an effort is to ask for thinking."""
        enabled = True if self.enabled is None and self.effort is not None else self.enabled
        lower = True if below.enabled is None and below.effort is not None else below.enabled
        return ReasoningSettings(
            enabled=lower if enabled is None else enabled,
            effort=below.effort if self.effort is None else self.effort,
            budget=below.budget if self.budget is None else self.budget,
            split=below.split if self.split is None else self.split,
        )

    def wire(self, *, lenient: bool = False) -> Reasoning:
        """What the worker is told. Without thinking there is nothing to tell of effort and budget. ``lenient``: what the model
        cannot be told is left out, and no error.
        """
        split = self.split is not False
        if self.enabled is False:
            return Reasoning(enabled=False, split=split, lenient=lenient)
        return Reasoning(enabled=self.enabled, effort=self.effort, budget=self.budget, split=split, lenient=lenient)
