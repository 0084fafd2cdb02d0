"""The position of a sink in a decision log."""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass, fields
from typing import Self

REGISTERS = ("log", "number", "segment", "sequence")
"""Names of the numbers that a position consists of."""


def fingerprint(uuid: bytes) -> int:
    """Return 63 bits that stand for a UUID, which a sink can store as a signed 64-bit integer."""
    return int.from_bytes(hashlib.blake2b(uuid, digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True, slots=True)
class ShipPosition:
    """The end of the records that a sink holds.

    A sequence alone is not enough: after a failure of the machine, a log can use the sequences of lost
    records again, in a later segment.
    """

    log: int
    """Fingerprint of the log's UUID."""
    number: int
    """Number of the segment that holds the last delivered record."""
    segment: int
    """Fingerprint of that segment's UUID."""
    sequence: int
    """Sequence after the last delivered record."""

    @property
    def place(self) -> tuple[int, int]:
        """Segment number and sequence, which order the positions in one log."""
        return self.number, self.sequence

    @classmethod
    def of(cls, values: dict[str, int | None]) -> Self | None:
        """Return the position with these values by name; None if a value is missing.

        Raises:
            ValueError: Some values are missing and others are not.
        """
        given = [values.get(name) for name in REGISTERS]
        if all(value is None for value in given):
            return None
        if any(value is None for value in given):
            raise ValueError("the position is incomplete")
        return cls(*(int(value) for value in given if value is not None))

    def values(self) -> dict[str, int]:
        """Return the values by name."""
        return {field.name: value for field, value in zip(fields(self), astuple(self), strict=True)}
