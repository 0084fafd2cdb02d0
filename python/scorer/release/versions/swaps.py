"""The swap set of two bundles: the decisions that only one of them flags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from scorer.release.version_answers import SwapSet

if TYPE_CHECKING:
    from scorer.release.answers import Readout
    from scorer.release.gates.evidence import ShadowEvidence

_FLIPS = "flips"


def against_live(report: Readout, lowest: str, *, is_left: bool) -> SwapSet | None:
    """Return the swap set of a bundle and the live bundle that it was observed beside, from its report.

    Args:
        report: The report of the observed bundle, whose live bundle is the other side.
        lowest: Label of the lowest band, which flags nothing; empty: an action bundle.
        is_left: Whether the observed bundle is the left side.
    """
    figure = next((one for one in report.figures if one.name == _FLIPS), None)
    if figure is None or not figure.rows:
        return None
    # The figure's rows are live's decision, the observed bundle's, and how many.
    pairs = {((own, live) if is_left else (live, own)): int(count) for live, own, count in figure.rows}
    sides = "the left bundle beside the right one" if is_left else "the right bundle beside the left one"
    return _swap_set(pairs, lowest, f"{report.change} observed {sides}, which answered.")


def over_common(left: ShadowEvidence, right: ShadowEvidence, lowest: str) -> SwapSet | None:
    """Return the swap set over the decisions that both bundles were observed at; None if there are none.

    Args:
        left: Observations of the left bundle.
        right: Observations of the right bundle.
        lowest: Label of the lowest band, which flags nothing; empty: action bundles.
    """
    rows = [one.shadow.take(one.shadow.comparable) for one in (left, right)]
    _, first, second = np.intersect1d(rows[0].key, rows[1].key, return_indices=True)
    if not len(first):
        return None
    is_action = left.kind == "action"
    names = [one.labels() for one in rows]
    codes = [(one.top if is_action else one.label)[at] for one, at in zip(rows, (first, second), strict=True)]
    both = Counter(zip(codes[0].tolist(), codes[1].tolist(), strict=True))
    pairs = {(names[0][a], names[1][b]): count for (a, b), count in both.items()}
    words = (
        "Both were observed beside the same live bundle; these are the decisions that both were observed at."
    )
    return _swap_set(pairs, lowest, words)


def _swap_set(pairs: Mapping[tuple[str, str], int], lowest: str, words: str) -> SwapSet:
    total = sum(pairs.values())
    differing = sum(count for (left, right), count in pairs.items() if left != right)
    matrix = tuple(
        (left, right, count) for (left, right), count in sorted(pairs.items(), key=lambda one: -one[1])
    )
    if not lowest:
        return SwapSet(words, total, differing, None, None, None, None, matrix[:200])

    def count_of(is_left: bool, is_right: bool) -> int:
        return sum(
            count
            for (left, right), count in pairs.items()
            if (left != lowest) == is_left and (right != lowest) == is_right
        )

    return SwapSet(
        words=words,
        decisions=total,
        differing=differing,
        left_only=count_of(True, False),
        right_only=count_of(False, True),
        both=count_of(True, True),
        neither=count_of(False, False),
        matrix=_by_band(matrix, lowest),
    )


def _by_band(matrix: Sequence[tuple[str, str, int]], lowest: str) -> tuple[tuple[str, str, int], ...]:
    """Return the pairs with the lowest band first, then the commonest."""
    return tuple(sorted(matrix, key=lambda one: (one[0] != lowest, one[1] != lowest, -one[2])))[:200]
