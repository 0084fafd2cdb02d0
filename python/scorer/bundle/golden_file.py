"""Reading of ``golden.bin``, with the standard library alone (docs/bundle-format.md)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Final

from scorer.errors import BundleError

FILE: Final = "golden.bin"
CHECKPOINT: Final = "golden"
"""Checkpoint of the draws of golden cases; the decision id of a case is ``golden-<position>``."""
_MAGIC: Final = b"SCGOLD1\n"
_HEAD: Final = struct.Struct("<8s5I")


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """One golden case.

    Attributes:
        id: Id of the decision with which an action bundle draws.
        row: The encoded features, ``[features]``; NaN for a missing value.
        eligible: Whether each action is eligible, ``[actions]``; empty in a score bundle.
        scores: The score of each eligible action, or the one score of a score bundle.
        probabilities: The policy's probability of each eligible action; empty in a score bundle.
        choice: Index of the band, or of the drawn action in the catalogue.
    """

    id: str
    row: tuple[float, ...]
    eligible: tuple[bool, ...]
    scores: tuple[float, ...]
    probabilities: tuple[float, ...]
    choice: int


def read_golden(bundle: str | PathLike[str]) -> Iterator[GoldenCase]:
    """Yield the golden cases of a verified bundle.

    Args:
        bundle: The bundle's directory.

    Raises:
        BundleError: The file is not one of golden cases, or it ends within a case.
    """
    path = Path(bundle) / FILE
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size or not head.startswith(_MAGIC):
            raise BundleError(f'"{path}" is no file of golden cases; build the bundle again')
        _, cases, features, margins, actions, voters = _HEAD.unpack(head)

        def values(form: str, count: int) -> tuple[float, ...]:
            size = struct.calcsize(form) * count
            found = file.read(size)
            if len(found) != size:
                raise BundleError(f'"{path}" ends within a golden case; build the bundle again')
            return struct.unpack(f"<{count}{form}", found)

        for case in range(cases):
            row = values("f", features)
            eligible = _bits(values("B", (actions + 7) // 8), actions)
            rows = sum(eligible) if actions else 1
            values("d", rows * margins)
            scores = values("d", rows * (1 + voters))
            probabilities = values("d", rows) if actions else ()
            (choice,) = values("I", 1)
            yield GoldenCase(
                f"golden-{case}", row, eligible, scores[:: 1 + voters], probabilities, int(choice)
            )


def _bits(found: Sequence[float], count: int) -> tuple[bool, ...]:
    return tuple(bool(int(found[at // 8]) >> at % 8 & 1) for at in range(count))
