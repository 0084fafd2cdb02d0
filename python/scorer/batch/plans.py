"""Plans of runs on a cluster: which portions of the input each task scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scorer.batch.portions import Portion


@dataclass(frozen=True)
class PlannedPart:
    """A part of the output, which one task writes.

    Attributes:
        number: Number of the part, from 0.
        portions: The rows of the input that it holds, in order.
    """

    number: int
    portions: tuple[Portion, ...]

    @property
    def rows(self) -> int | None:
        """Number of rows; None if it is known only at the end."""
        counts = [portion.rows for portion in self.portions]
        return None if None in counts else sum(count or 0 for count in counts)


def plan_parts(portions: Sequence[Portion], part_rows: int) -> list[PlannedPart]:
    """Divide an input among parts, in its order. Small files share a part, and large ones are cut.

    Args:
        portions: The files of the input.
        part_rows: Greatest number of rows of a part. A row group with more rows is not cut, nor is a file
            whose number of rows is not known, which has a part of its own.

    Returns:
        At least one part.
    """
    return [PlannedPart(number, found) for number, found in enumerate(_combined(portions, part_rows))]


def _combined(portions: Sequence[Portion], part_rows: int) -> Iterator[tuple[Portion, ...]]:
    part: list[Portion] = []
    count = 0
    for piece in (piece for portion in portions for piece in portion.cut(part_rows)):
        rows = part_rows if piece.rows is None else piece.rows
        if part and count + rows > part_rows:
            yield tuple(part)
            part, count = [], 0
        part.append(piece)
        count += rows
    yield tuple(part)
