"""Adds the segments to rows that are written to parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scorer.release.readout.parts import segment_column
from scorer.release.readout.schemas import Schemas
from scorer.release.segments.settings import SegmentPlan


class Segmenter:
    """Splits rows by the features that they were evaluated on.

    Segments are kept as words, as two bundles can have different codes for the same category.

    Args:
        schemas: Splits by bundle.
        plan: How rows of a checkpoint are split; None: the platform does not manage it.
    """

    def __init__(self, schemas: Schemas, plan: Callable[[str], SegmentPlan | None]) -> None:
        self._schemas, self._plan = schemas, plan

    def add(self, checkpoint: str, rows: Sequence[dict[str, Any]]) -> list[str]:
        """Add the segments to rows, which have their `bundle` and `features`; return the columns added.

        A row whose features were not logged, or whose bundle is gone, gets none.
        """
        plan = self._plan(checkpoint)
        if plan is None:
            return []
        by_bundle: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            by_bundle[row["bundle"]].append(row)
        added: dict[str, None] = {}
        for digest, own in by_bundle.items():
            split, schema = self._schemas.split(digest, plan), self._schemas.features(digest)
            if split is None or schema is None or not split.names:
                continue
            width = 4 * len(schema)
            whole = [row for row in own if len(row["features"]) == width]
            joined = b"".join(row["features"] for row in whole)
            codes = split.codes(np.frombuffer(joined, np.float32).reshape(-1, len(schema)))
            for at, (name, levels) in enumerate(split.levels):
                column = segment_column(name)
                added[column] = None
                # The word of code -1, which is the last one here, is the missing one.
                words = (*levels, "")
                for row, code in zip(whole, codes[:, at].tolist(), strict=True):
                    row[column] = words[code]
        return list(added)
