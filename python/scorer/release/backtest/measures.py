"""Metrics of a candidate and of the live bundle on the same rows, with paired intervals.

The candidate is compared at the live bundle's rates: it flags as many requests as the live bundle, those with
its highest scores, regardless of its thresholds. Areas under ROC curves have DeLong's intervals, and all
other metrics those of the bootstrap by day.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scorer.release.backtest.rows import Labelled
from scorer.release.gates.measured import Measured, nothing
from scorer.release.segments.split import band_codes, band_words, by_band, largest
from scorer.stats import ranking, roc
from scorer.stats.arrays import Bools, Floats, Ints
from scorer.stats.blocks import Blocks
from scorer.stats.interval import Interval
from scorer.stats.means import effective_sample_size

_SURE: Final = 0.95
_EXAMPLES: Final = 20
_AMOUNT_BANDS: Final = 4
_LEAST_OF_SEGMENT: Final = 5
"""Least number of positive rows for which the recall of a segment is shown."""


@dataclass(frozen=True)
class BacktestComparison:
    """Metrics of both bundles.

    Attributes:
        measured: Values by the name of the gates' metric.
        metrics: Values for display, by name: `live`, `candidate`, `difference`, `low`, `high`.
        segments: The same for segments of the rows.
        missed: Examples of positive rows that only the live bundle flags.
        positives: Number of rows with the outcome.
    """

    measured: Mapping[str, Measured]
    metrics: Mapping[str, Mapping[str, float | None]]
    segments: Sequence[Mapping[str, Any]] = ()
    missed: Sequence[Mapping[str, Any]] = ()
    positives: int = 0


@dataclass
class _Pair:
    """Collects metrics."""

    rows: int
    measured: dict[str, Measured] = field(default_factory=dict)
    metrics: dict[str, dict[str, float | None]] = field(default_factory=dict)

    def add(
        self,
        name: str,
        live: float,
        candidate: float,
        value: float,
        bounds: Callable[[float], tuple[float, float]],
        remark: str,
    ) -> None:
        """Add a metric: the values of both bundles, their difference (or relative change) and its bounds."""
        low, high = bounds(_SURE)
        self.metrics[name] = {
            "live": _plain(live),
            "candidate": _plain(candidate),
            "difference": _plain(value),
            "low": _plain(low),
            "high": _plain(high),
        }
        found = Measured(value, self.rows, bounds, remark=remark) if math.isfinite(value) else nothing(remark)
        self.measured[f"backtest_{name}"] = found


def compare_scores(found: Labelled, *, least: int) -> BacktestComparison:
    """Compare score bundles.

    Args:
        found: Labelled rows.
        least: Least number of rows of each class.
    """
    rows, label = found.rows, found.outcome > 0.5
    positives = int(label.sum())
    if min(positives, len(rows) - positives) < least:
        why = (
            f"{positives:,} of {len(rows):,} rows with a known outcome are positive; "
            f"{least:,} of each class are needed"
        )
        return BacktestComparison(
            dict.fromkeys(_SCORE_NAMES, nothing(why, len(rows))), {}, positives=positives
        )
    own, live = rows.values["candidate"], rows.values["live"]
    failed = ~np.isfinite(own)
    own = ranking.without_gaps(own)
    pair, blocks = _Pair(len(rows)), Blocks(rows.at)
    _areas(pair, own, live, label)
    _average_precision(pair, own, live, label, blocks)
    flagged = {}
    for rate, band in _rates(found).items():
        flagged[rate] = _at_rate(
            pair, rate, own, rows.values["live_band"] >= band, label, rows.amount, blocks
        )
    _calibration(pair, own, live, failed, label, blocks)
    shown = flagged.get("review", next(iter(flagged.values()), None))
    if shown is None:
        return BacktestComparison(pair.measured, pair.metrics, positives=positives)
    segments = _segments(found, label, *shown)
    missed = _missed(found, label, own, *shown)
    return BacktestComparison(pair.measured, pair.metrics, segments, missed, positives)


def compare_actions(found: Labelled) -> BacktestComparison:
    """Compare action bundles by the known rewards; see `actions` for the columns of the rows."""
    rows = found.rows
    if len(rows) < 2:
        return BacktestComparison(
            dict.fromkeys(_ACTION_NAMES, nothing("no decision has a known outcome")), {}
        )
    values, reward = rows.values, found.outcome
    pair, blocks = _Pair(len(rows)), Blocks(rows.at)
    one = np.ones(len(rows))
    weight, before = values["weight"], values["live_weight"]
    effective = effective_sample_size(weight)
    remark = f"{effective:,.0f} effective rows of {len(rows):,}"
    doubly, doubly_live = (values[name] + w * reward for name, w in (("base", weight), ("live_base", before)))
    for name, ours, theirs in (
        ("reward", doubly, doubly_live),
        ("reward_ips", weight * reward, before * reward),
    ):
        change = blocks.ratio(ours - theirs, one)
        pair.add(name, float(theirs.mean()), float(ours.mean()), change.value, change.bounds, remark)
    agreement = blocks.ratio(values["same"], one)
    pair.add("agreement", 1.0, agreement.value, agreement.value, agreement.bounds, "of the likeliest actions")
    share = effective / len(rows)
    pair.metrics["effective_rows"] = {"live": effective_sample_size(before), "candidate": effective}
    pair.measured["backtest_effective_share"] = Measured(share, len(rows), remark=remark)
    return BacktestComparison(pair.measured, pair.metrics, positives=int((reward > 0).sum()))


# --- scores ---


def _areas(pair: _Pair, own: Floats, live: Floats, label: Bools) -> None:
    areas, covariance = roc.auc([own, live], label)
    contrast = np.array([1.0, -1.0])
    error = math.sqrt(max(float(contrast @ covariance @ contrast), 0.0))
    value = float(areas[0] - areas[1])

    def bounds(confidence: float) -> Interval:
        half = NormalDist().inv_cdf(confidence) * error
        return Interval(value - half, value + half)

    pair.add("auc", areas[1], areas[0], value, bounds, f"AUC {areas[0]:.4f}, live {areas[1]:.4f} (DeLong)")


def _average_precision(pair: _Pair, own: Floats, live: Floats, label: Bools, blocks: Blocks) -> None:
    mine, theirs = ranking.Precision(own, label), ranking.Precision(live, label)
    first, second = mine.average(), theirs.average()
    change = blocks.of(lambda weights: _relative(mine.average(weights), theirs.average(weights)))
    pair.add(
        "average_precision",
        second,
        first,
        change.value,
        change.bounds,
        f"average precision {first:.3f}, live {second:.3f}",
    )


def _rates(found: Labelled) -> dict[str, int]:
    """Return the lowest band that counts as flagged, and the highest band, by name."""
    bands = len(found.labels)
    if bands < 2:
        return {}
    return {"review": 1} if bands == 2 else {"review": 1, "decline": bands - 1}


def _at_rate(
    pair: _Pair,
    rate: str,
    own: Floats,
    flagged: Bools,
    label: Bools,
    amount: npt.NDArray[np.float32],
    blocks: Blocks,
) -> tuple[Floats, Floats]:
    """Add recall and saved value if both flag as many requests as the live bundle, and the flagged shares."""
    live = flagged.astype(np.float64)
    mine = ranking.among_highest(own, int(flagged.sum()))
    hits, caught = float(mine[label].sum()), float(live[label].sum())
    positives = int(label.sum())
    share = f"{100 * flagged.mean():.2f} %"
    change = blocks.ratio(np.where(label, mine - live, 0.0), np.where(label, live, 0.0))
    pair.add(
        f"recall_{rate}",
        caught / positives,
        hits / positives,
        change.value,
        change.bounds,
        f"of {positives:,} positive rows this bundle finds {hits:,.0f} and live {caught:,.0f} where each "
        f"flags {share}",
    )
    if rate == "review" and np.isfinite(amount).any():
        value = np.where(label & np.isfinite(amount), amount, 0.0).astype(np.float64)
        saved, before = float((value * mine).sum()), float((value * live).sum())
        change = blocks.ratio(value * (mine - live), value * live)
        pair.add(
            "value_saved",
            before,
            saved,
            change.value,
            change.bounds,
            f"this bundle saves {saved:,.0f} and live {before:,.0f} of {value.sum():,.0f} where each flags "
            f"{share}",
        )
    return mine, live


def _calibration(pair: _Pair, own: Floats, live: Floats, failed: Bools, label: Bools, blocks: Blocks) -> None:
    """Compare the sum of the scores with the number of positives, if the scores are probabilities."""
    known = ~failed
    if not known.any() or own[known].min() < 0 or own[known].max() > 1 or live.min() < 0 or live.max() > 1:
        return
    observed = label.astype(np.float64)
    mine = blocks.ratio(np.where(known, own, 0.0), observed)
    theirs = float(live.sum() / observed.sum())
    pair.add(
        "calibration",
        theirs,
        mine.value,
        mine.value,
        mine.bounds,
        f"expected over observed positives; live {theirs:.2f}",
    )


def _relative(own: float, live: float) -> float:
    return own / live - 1 if live > 0 else math.nan


def _segments(found: Labelled, label: Bools, own: Floats, live: Floats) -> list[dict[str, Any]]:
    """Rows, positives and recall of each level, at the rate of all rows."""
    columns = [(*one, found.rows.segments[:, at]) for at, one in enumerate(found.segments)]
    amount = found.rows.amount
    numbers = set(dict(found.plan.bands))
    if np.isfinite(amount).any() and not dict(found.plan.bands):
        limits = np.unique(np.nanquantile(amount, np.linspace(0, 1, _AMOUNT_BANDS + 1)[1:-1])).tolist()
        columns.append(("amount", band_words(limits), band_codes(amount, limits)))
        numbers.add("amount")
    segments = []
    for name, levels, codes in columns:
        levelled = largest(codes, levels, found.plan.most)
        for level, of, _ in by_band(levelled, levels) if name in numbers else levelled:
            positive = of[label[of]]
            segments.append(
                {
                    "feature": name,
                    "level": level,
                    "rows": len(of),
                    "positives": len(positive),
                    "live": _recall(live, positive),
                    "candidate": _recall(own, positive),
                }
            )
    return segments


def _recall(weights: Floats, positive: Ints) -> float | None:
    return float(weights[positive].mean()) if len(positive) >= _LEAST_OF_SEGMENT else None


def _missed(
    found: Labelled, label: Bools, candidate: Floats, own: Floats, live: Floats
) -> list[dict[str, Any]]:
    """Return positive rows that only the live bundle flags, the candidate's lowest scores first."""
    places = np.flatnonzero(label & (live > 0) & (own <= 0))
    places = places[np.lexsort((found.rows.key[places], candidate[places]))][:_EXAMPLES]
    ids = found.rows.id.take(places).texts()
    rows = found.rows
    return [
        {
            "decision_id": decision,
            "at": int(rows.at[place]),
            "score": _plain(float(rows.values["candidate"][place])),
            "live_score": _plain(float(rows.values["live"][place])),
            "amount": _plain(float(rows.amount[place])),
        }
        for decision, place in zip(ids, places.tolist(), strict=True)
    ]


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


_SCORE_NAMES: Final = (
    "backtest_auc",
    "backtest_average_precision",
    "backtest_recall_review",
    "backtest_recall_decline",
    "backtest_value_saved",
    "backtest_calibration",
)
_ACTION_NAMES: Final = (
    "backtest_reward",
    "backtest_reward_ips",
    "backtest_agreement",
    "backtest_effective_share",
)
