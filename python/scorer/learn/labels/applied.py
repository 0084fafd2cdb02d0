"""The label policy applied to logs: the decisions with their reports, and the maturity curves of labels.

The training table and the comparison of versions use this alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from scorer.bundle import Feature
from scorer.learn.labels.curves import DAY_MS, MaturityCurves, estimate_curves
from scorer.learn.labels.histories import Histories, HistoryQuery, read_histories
from scorer.learn.labels.policy import LABEL_CURVE, by_segment, given_labels, is_declined
from scorer.learn.labels.segments import RULE
from scorer.learn.labels.settings import LabelSettings

if TYPE_CHECKING:
    from scorer.log import BundleShelf, ReaderKey
    from scorer.log.reading import Advance
    from scorer.log.source.interface import DecisionSource


def read_labelled(
    source: DecisionSource,
    shelf: BundleShelf,
    settings: LabelSettings,
    *,
    checkpoint: str,
    as_of_ms: int,
    since_ms: int = 0,
    advance: Advance | None = None,
    reader_key: ReaderKey | None = None,
) -> Histories:
    """Read the decisions of a checkpoint with their reports, and the segments that the policy needs.

    Args:
        source: The logs.
        shelf: The bundles of the decisions.
        settings: The label policy.
        checkpoint: Name of the checkpoint.
        as_of_ms: The moment, Unix time. Later records are not used.
        since_ms: Time of the first decision, Unix time; `settings.days` may be later.
        advance: Called with the progress.
        reader_key: Key that decrypts sensitive features.

    Raises:
        LogError: No log can be read.
    """
    if settings.days is not None:
        since_ms = max(since_ms, round(as_of_ms - settings.days * DAY_MS))
    names = ["bundle", "decision", *([settings.segment] if settings.segment else [])]
    names += [RULE + one.rule for one in settings.explored]
    query = HistoryQuery(
        checkpoint=checkpoint,
        as_of_ms=as_of_ms,
        since_ms=max(since_ms, 0),
        segments=tuple(dict.fromkeys(names)),
        unproven=settings.unproven,
    )
    return read_histories(source, shelf, query, advance=advance, reader_key=reader_key)


def label_curves(histories: Histories, settings: LabelSettings) -> MaturityCurves:
    """Estimate the curves of the policy's own labels. Declined decisions are not in them.

    Raises:
        DataError: The log is too short for a curve.
    """
    open_ones = histories.take(~is_declined(histories, settings))
    return estimate_curves(
        by_segment(open_ones, settings),
        {LABEL_CURVE: given_labels(open_ones, settings).events()},
        horizon_ms=None if settings.horizon_days is None else round(settings.horizon_days * DAY_MS),
        least=settings.least,
    )


def layouts_of(histories: Histories, shelf: BundleShelf) -> Mapping[str, list[Feature]]:
    """Return the features of each bundle of the decisions that the shelf has, by digest."""
    column = next(one for one in histories.segments if one.name == "bundle")
    return {
        digest: list(shelf.schema(digest).features) for digest in column.values if digest in shelf.digests
    }
