"""A clock that moves only when it is told to."""


class FakeClock:
    """``sleep`` advances it at once; ``slept`` is what was asked for, in order."""

    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
