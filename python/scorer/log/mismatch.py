"""A value of the log that differs from the value that a bundle computes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mismatch:
    """A logged value that differs from the value that the bundle computes."""

    sequence: int
    decision_id: str
    field: str
    logged: str
    computed: str
    source: str = "the bundle gives"

    def __str__(self) -> str:
        return (
            f"sequence {self.sequence}, decision {self.decision_id}: {self.field} is {self.logged}, "
            f"{self.source} {self.computed}"
        )
