"""Figures of scores: histogram, cumulative shares, score against score."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from scorer.figure import Figure
from scorer.figure_style import (
    COLOURS,
    INK,
    NAMES,
    SEQUENTIAL,
    axis,
    layout,
    line,
    outlines,
    percent,
    scatter,
)
from scorer.release.gates.evidence import Floats, ShadowEvidence
from scorer.stats import distances

_BINS = 40
_GRID = 48
_EVEN = 50
"""Number of equal bins of a reference. It has further edges at its twentieths."""
_FEW = 12
"""If fewer equal bins than this cover the scores, the edges at the twentieths are used too."""
_TRAINING = "training"


def what(evidence: ShadowEvidence) -> str:
    """Return the name of the score for axes."""
    return "score" if evidence.kind == "score" else "expected reward"


def samples(evidence: ShadowEvidence) -> Iterator[tuple[str, Floats]]:
    """Yield pairs of side and scores of the live bundle, this bundle and the A/A control."""
    shadow, control = evidence.shadow, evidence.control
    both = shadow.comparable
    yield "live", shadow.live_score[both]
    yield "shadow", shadow.score[shadow.scored]
    if len(control):
        yield "control", control.score[control.scored]


def histogram(evidence: ShadowEvidence) -> Figure:
    """Draw the shares of scores by bin, on a log scale because fraud is rare."""
    edges = _edges(evidence)
    if evidence.training is not None:
        known = [scores for _, scores in samples(evidence) if len(scores)]
        known.append(np.asarray(evidence.training.quantiles))
        edges = bins(
            np.asarray(evidence.training.edges),
            min(float(one.min()) for one in known),
            max(float(one.max()) for one in known),
        )
    shares: dict[str, Floats] = {}
    for side, scores in samples(evidence):
        counts = np.histogram(np.clip(scores, edges[0], edges[-1]), edges)[0]
        shares[side] = counts / max(counts.sum(), 1)
    if evidence.training is not None:
        own = evidence.training
        shares[_TRAINING] = counted(np.asarray(own.edges), np.asarray(own.counts), edges)
    plotly, rows = outlines(shares, edges, what(evidence))
    return Figure("scores", "Score histogram", apart(evidence), plotly, ("from", "to", *shares), rows)


def cdf(evidence: ShadowEvidence) -> Figure:
    """Draw the share of scores up to each value."""
    grid = np.linspace(0, 1, 201)
    rows: list[tuple[Any, ...]] = []
    data = []
    for side, scores in samples(evidence):
        if not len(scores):
            continue
        values = np.quantile(scores, grid, method="inverted_cdf")
        rows += [(side, float(share), float(value)) for share, value in zip(grid, values, strict=True)]
        data.append(_cumulative_line(side, values, grid))
    if evidence.training is not None:
        values = np.asarray(evidence.training.quantiles)
        shares = np.linspace(0, 1, len(values))
        rows += [(_TRAINING, float(s), float(v)) for s, v in zip(shares, values, strict=True)]
        data.append(_cumulative_line(_TRAINING, values, shares))
    plot = layout(
        axis(what(evidence), **_scale(rows)),
        axis("share of requests", tickformat=".0%", range=[0, 1.02]),
        hovermode="closest",
    )
    columns = ("side", "share", what(evidence))
    return Figure(
        "score-cdf",
        "Cumulative scores",
        apart(evidence),
        {"data": data, "layout": plot},
        columns,
        rows,
    )


def against(evidence: ShadowEvidence) -> Figure:
    """Draw the counts of requests by both scores, over a grid."""
    both = evidence.shadow.comparable
    live, own = evidence.shadow.live_score[both], evidence.shadow.score[both]
    edges = _edges(evidence, _GRID)
    counts = np.histogram2d(_inside(live, edges), _inside(own, edges), [edges, edges])[0]
    middles = ((edges[:-1] + edges[1:]) / 2).round(6)
    x, y = np.nonzero(counts)
    rows = [(float(middles[i]), float(middles[j]), int(counts[i, j])) for i, j in zip(x, y, strict=True)]
    shown = np.where(counts.T > 0, np.log10(np.maximum(counts.T, 1)), np.nan)
    ticks = list(range(int(np.log10(max(counts.max(), 1))) + 1))
    heat = {
        "type": "heatmap",
        "x": middles.tolist(),
        "y": middles.tolist(),
        "z": [[None if np.isnan(v) else round(float(v), 4) for v in row] for row in shown],
        "text": [[f"{int(v):,}" for v in row] for row in counts.T],
        "colorscale": [[0.0, "#C6DBEF"], *SEQUENTIAL[2:-1], SEQUENTIAL[-1]],
        "hovertemplate": "live %{x:.3f}, this bundle %{y:.3f}: %{text} requests<extra></extra>",
        "hoverongaps": False,
        "colorbar": {"title": {"text": "requests"}, "tickvals": ticks, "thickness": 12}
        | {"ticktext": [f"{10**tick:,}" for tick in ticks]},
    }
    ends = [float(edges[0]), float(edges[-1])]
    same = scatter(ends, ends, "equal", line={"color": INK, "dash": "dot", "width": 1}, hoverinfo="skip")
    plot = layout(
        axis(f"{what(evidence)}, live", range=ends, nticks=6),
        axis(f"{what(evidence)}, this bundle", range=ends, nticks=6),
        showlegend=False,
        hovermode="closest",
        height=420,
    )
    return Figure(
        "score-score",
        "Score against score",
        _agreement(live, own),
        {"data": [heat, same], "layout": plot},
        ("live", "this bundle", "requests"),
        rows,
    )


def apart(evidence: ShadowEvidence) -> str:
    """Return a sentence with PSI, Kullback-Leibler and Jensen-Shannon divergence."""
    parts = []
    for name, binned in compared(evidence).items():
        found = (
            f"PSI {distances.psi(binned.first, binned.second):.3f}, "
            f"KL {distances.kl(binned.second, binned.first):.3f}, "
            f"JS {distances.js(binned.first, binned.second):.3f}"
        )
        parts.append(f"against {name} {found}")
    return f"This bundle's scores {'; '.join(parts)}." if parts else "There are no scores yet."


def compared(evidence: ShadowEvidence) -> dict[str, distances.BinnedPair]:
    """Return the scores of this bundle over common bins with live's and with the reference's, if any."""
    shadow = evidence.shadow
    own, both = shadow.score[shadow.scored], shadow.comparable
    found: dict[str, distances.BinnedPair] = {}
    if both.any():
        found["live"] = distances.by_samples(shadow.live_score[both], shadow.score[both])
    if len(own) and evidence.reference is not None:
        found["the reference"] = distances.by_reference(
            evidence.reference.counts, evidence.reference.edges, own
        )
    return found


def bins(own: Floats, low: float, high: float) -> Floats:
    """Return the edges of a histogram that shows a reference as it was counted.

    Every edge is one of the reference's own, so no mass is placed where none was counted.

    Args:
        own: Edges of the reference, ascending.
        low: Smallest score that is shown.
        high: Largest score that is shown.
    """
    even = own[np.isin(own, np.linspace(own[0], own[-1], _EVEN + 1))]
    chosen = own
    for candidates in (even, own):
        last = min(int(np.searchsorted(candidates, high)), len(candidates) - 1)
        first = max(int(np.searchsorted(candidates, low, side="right")) - 1, 0)
        # Probabilities are shown from 0 on, and to 1 where scores reach beyond the middle.
        if own[0] == 0 and own[-1] == 1:
            first, last = 0, len(candidates) - 1 if high > 0.5 else last
        chosen = candidates[first : last + 1]
        if len(chosen) > _FEW:
            break
    ends = ([low] if low < chosen[0] else [], [high] if high > chosen[-1] else [])
    return np.concatenate([ends[0], chosen, ends[1]])


def counted(own: Floats, counts: Floats, edges: Floats) -> Floats:
    """Return the share of a reference's scores in each bin, `[bins]`.

    Args:
        own: Edges of the reference, `[n + 1]`.
        counts: Its counts, `[n]`.
        edges: From `bins`, `[bins + 1]`.
    """
    mass = np.concatenate([[0.0], np.cumsum(counts)])
    return np.asarray(np.diff(np.interp(edges, own, mass / max(mass[-1], 1.0))))


def _edges(evidence: ShadowEvidence, bins: int = _BINS) -> Floats:
    known = [scores for _, scores in samples(evidence) if len(scores)]
    if evidence.training is not None:
        known.append(np.asarray(evidence.training.quantiles))
    low = min((float(one.min()) for one in known), default=0.0)
    high = max((float(one.max()) for one in known), default=1.0)
    if low >= 0 and high <= 1:
        # The range of the scores, because fraud scores may not exceed 0.1.
        low, high = 0.0, 1.0 if high > 0.5 else high or 1.0
    elif low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, bins + 1)


def _scale(rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    """Return a log scale if nine tenths of the scores are within a fifth of the range, as for fraud."""
    values = np.array([row[2] for row in rows])
    if not len(values) or values.min() <= 0 or np.quantile(values, 0.9) > values.max() / 5:
        return {}
    return {"type": "log", "dtick": 1}


def _inside(values: Floats, edges: Floats) -> Floats:
    return np.clip(values, edges[0], edges[-1])


def _cumulative_line(side: str, x: Floats, y: Floats) -> dict[str, Any]:
    return {
        **scatter(x.tolist(), y.tolist(), NAMES[side], line=line(side) | {"shape": "hv"}),
        "hovertemplate": "%{y:.1%} up to %{x:.4g}",
        "marker": {"color": COLOURS[side]},
    }


def _agreement(live: Floats, own: Floats) -> str:
    if len(live) < 2:
        return "There are no pairs of scores yet."
    apart = np.abs(live - own)
    equal = float((live == own).mean())
    constant = live.std() == 0 or own.std() == 0
    together = "" if constant else f", correlated by {np.corrcoef(live, own)[0, 1]:.3f}"
    return (
        f"{len(live):,} pairs{together}; {percent(equal, 1)} are equal, the median difference is "
        f"{np.median(apart):.2g}, the 99th percentile {np.quantile(apart, 0.99):.2g}."
    )
