"""One request of the simulated engine, from its submission to its end."""

from __future__ import annotations

from dataclasses import dataclass

from engines.scheduling.growth import RowLengths
from engines.simulated_script import Script
from engines.text.stops import StopMatcher
from engines.wire import TextRequest

__all__ = ["SimulatedRow"]


@dataclass(eq=False)
class SimulatedRow:
    """Times are in seconds of the engine's clock."""

    request: TextRequest
    request_id: int
    prompt_tokens: int
    max_tokens: int
    stops: StopMatcher
    lengths: RowLengths
    script: Script
    submitted_at: float = 0.0
    due: float = 0.0  # when its next token comes
    said_at: float | None = None  # when its last token came
    emitted: int = 0
    unsent: tuple[tuple[int, str], ...] = ()  # tokens whose text may be the beginning of a stop
    echoed: bool = False
    cached_tokens: int = 0
    admitted: bool = False  # and may have given way since
    waits_until: float | None = None  # it outgrew the grant alone; without a larger one by then it ends where it is
    cancelled: bool = False

    @property
    def held(self) -> int:
        """Tokens of prompt and answer so far."""
        return self.prompt_tokens + self.emitted
