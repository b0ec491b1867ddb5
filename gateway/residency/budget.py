"""The memory budget: who holds how many bytes of it.

A charge belongs to a *generation* of a resident, not to a state: it is made before the worker starts and credited only when
the release of its bytes has been observed. A charge whose worker should be gone and whose bytes are not is *unreleased*.
Bytes are integers.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Borrower", "Budget"]


@dataclass(frozen=True, slots=True)
class Borrower:
    """One charge. ``name`` is the registry id it is shown under."""

    key: str
    generation: int
    name: str
    bytes: int
    unreleased: bool = False


class Budget:
    """``charged_bytes + available_bytes == total_bytes`` at all times; ``available_bytes`` is negative in an overrun.

    One writer: the residency core.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._overhead_bytes = 0
        self._charges: dict[tuple[str, int], Borrower] = {}
        self._charged_bytes = 0  # the sum over _charges

    @property
    def budget_bytes(self) -> int:
        return self._budget_bytes

    @property
    def overhead_bytes(self) -> int:
        """Taken by what is no resident: warm spares, and the tokenizer process."""
        return self._overhead_bytes

    @overhead_bytes.setter
    def overhead_bytes(self, value: int) -> None:
        self._overhead_bytes = value

    @property
    def total_bytes(self) -> int:
        return self._budget_bytes - self._overhead_bytes

    @property
    def charged_bytes(self) -> int:
        return self._charged_bytes

    @property
    def available_bytes(self) -> int:
        return self.total_bytes - self._charged_bytes

    @property
    def borrowers(self) -> tuple[Borrower, ...]:
        """All charges, oldest first."""
        return tuple(self._charges.values())

    def charge(self, key: str, generation: int, name: str, byte_count: int) -> None:
        """A new generation takes its bytes. ValueError when it holds some already or they are not there."""
        if (key, generation) in self._charges:
            raise ValueError(f"{name} generation {generation} is charged already")
        if not 0 <= byte_count <= self.available_bytes:
            raise ValueError(f"{name} cannot be charged {byte_count} bytes; {self.available_bytes} are available")
        self._charges[key, generation] = Borrower(key, generation, name, byte_count)
        self._charged_bytes += byte_count

    def adjust(self, key: str, generation: int, byte_count: int) -> int:
        """The charge is ``byte_count`` from now on (a measurement may exceed what is available); returns the change."""
        old = self._charges[key, generation]
        self._charges[key, generation] = Borrower(key, generation, old.name, byte_count, old.unreleased)
        self._charged_bytes += byte_count - old.bytes
        return byte_count - old.bytes

    def mark_unreleased(self, key: str, generation: int) -> None:
        """Its worker should be gone, its bytes are not seen free."""
        old = self._charges[key, generation]
        self._charges[key, generation] = Borrower(key, generation, old.name, old.bytes, True)

    def credit(self, key: str, generation: int) -> int:
        """The release has been observed: gives back the charge, and returns it."""
        gone = self._charges.pop((key, generation))
        self._charged_bytes -= gone.bytes
        return gone.bytes

    def of(self, key: str, generation: int) -> int | None:
        """The charge of one generation; None when it has none."""
        charge = self._charges.get((key, generation))
        return None if charge is None else charge.bytes

    def of_key(self, key: str) -> int:
        """All charges of a resident key, unreleased ones included."""
        return sum(charge.bytes for charge in self._charges.values() if charge.key == key)

    def unreleased_bytes(self) -> int:
        """The sum of the unreleased charges."""
        return sum(charge.bytes for charge in self._charges.values() if charge.unreleased)

    def check_integrity(self) -> None:
        """AssertionError when the identity does not hold."""
        total = sum(charge.bytes for charge in self._charges.values())
        assert total == self._charged_bytes, f"charges sum to {total}, {self._charged_bytes} are charged"
        assert all(charge.bytes >= 0 for charge in self._charges.values()), "a negative charge"
        assert self._charged_bytes + self.available_bytes == self.total_bytes, "charged + available is not total"
