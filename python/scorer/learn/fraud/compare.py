"""Two bundles of a score checkpoint on the same later payments: champion and challenger."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scorer.bundle import Bundle, Manifest, read_manifest
from scorer.bundle.models import ThresholdNode
from scorer.learn.errors import DataError
from scorer.learn.fraud.candidate import KEY
from scorer.learn.fraud.checks import check_data, usable_rows
from scorer.learn.fraud.measures import Differences, Judge, Measures
from scorer.learn.fraud.settings import FraudSettings
from scorer.learn.fraud.table import FraudTable, read_table
from scorer.learn.fraud.task import read_score_task
from scorer.learn.fraud.value import Thresholds, thresholds_of
from scorer.learn.fraud.windows import TimeSpan, unblocked
from scorer.stats.arrays import Floats, Ints


@dataclass(frozen=True)
class ScoreComparison:
    """Challenger and champion on the same payments.

    Attributes:
        window: The period; its payments are later than any training of either bundle.
        table: The payments.
        judge: Measures of these payments, with the draws of the bootstrap.
        challenger: Measures of the challenger.
        champion: Those of the champion.
        differences: The challenger's minus the champion's, paired.
        changed: Share of the payments with another decision.
        answers: Scores and thresholds of the challenger, and those of the champion.
        learned_ms: Time of the latest row in the training of each; None: the lineage has none.
        data_digest: Digest of the data.
    """

    window: TimeSpan
    table: FraudTable
    judge: Judge
    challenger: Measures
    champion: Measures
    differences: Differences
    changed: float
    answers: tuple[tuple[Floats, Thresholds], tuple[Floats, Thresholds]]
    learned_ms: tuple[int | None, int | None]
    data_digest: str


def compare_bundles(
    data: Path,
    challenger: Path,
    champion: Path,
    settings: FraudSettings,
    *,
    window: TimeSpan | None = None,
) -> ScoreComparison:
    """Compare two bundles on the payments of a file that are later than the training of both.

    Args:
        data: Parquet file with the features of both bundles.
        challenger: Directory of the bundle that may replace the other.
        champion: Directory of the live bundle.
        settings: `[fraud]`.
        window: Period to compare on; its beginning moves after the training. None: all of the data.

    Raises:
        DataError: The data is rejected, no payment is later than the training, a class is missing, or a
            bundle has other decisions than approve, review and decline.
    """
    manifests = [read_manifest(path) for path in (challenger, champion)]
    learned = [last_row(one) for one in manifests]
    after = max((one for one in learned if one is not None), default=-1) + 1
    tables = [
        read_table(data, read_score_task(path).features, settings.columns) for path in (challenger, champion)
    ]
    first, end = int(tables[0].time_ms[0]), int(tables[0].time_ms[-1]) + 1
    span = window or TimeSpan(first, end)
    span = TimeSpan(max(span.start_ms, after, first), span.end_ms)
    if span.start_ms >= min(span.end_ms, end):
        raise DataError(
            f'"{data}" has no payment of the window that neither bundle was trained on; give a later file'
        )
    check_data(tables[0], settings.checks)
    kept, _ = usable_rows(tables[0], settings.checks)
    tables = [one.take(kept) for one in tables]
    own = unblocked(tables[0], span, settings)
    judged = tables[0].take(own)
    judge = Judge(judged, settings)
    answers = tuple(
        (np.asarray(Bundle.load(path).score(table.rows[own]).scores, np.float64), _thresholds(manifest))
        for path, table, manifest in zip((challenger, champion), tables, manifests, strict=True)
    )
    one, other = answers[0], answers[1]
    changed = _decisions(*one) != _decisions(*other)
    return ScoreComparison(
        window=span,
        table=judged,
        judge=judge,
        challenger=judge.measures(*one),
        champion=judge.measures(*other),
        differences=judge.differences(one, other),
        changed=float((changed * judged.weight).sum() / judged.weight.sum()),
        answers=(one, other),
        learned_ms=(learned[0], learned[1]),
        data_digest=judged.digest,
    )


def last_row(manifest: Manifest) -> int | None:
    """Return the time of the latest row that a bundle was made from; None if its lineage has none."""
    recorded = manifest.lineage.metrics.get(KEY)
    found = recorded.get("last_ms") if isinstance(recorded, dict) else None
    return found if isinstance(found, int) else None


def _thresholds(manifest: Manifest) -> Thresholds:
    end = manifest.program[-1]
    bands = end.bands if isinstance(end, ThresholdNode) else []
    labels = {band.label for band in bands}
    if not bands or labels - {"approve", "review", "decline"}:
        raise DataError(
            f'bundle "{manifest.name}" decides {", ".join(sorted(labels)) or "nothing"}; the value of '
            "approve, review and decline is known only"
        )
    return thresholds_of(bands)


def _decisions(scores: Floats, thresholds: Thresholds) -> Ints:
    """Return 0 for approve, 1 for review and 2 for decline, `[n]`."""
    return np.asarray((scores >= thresholds.review).astype(np.int64) + (scores >= thresholds.decline))
