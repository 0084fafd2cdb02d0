"""Figures of decisions: the flip matrix, approve rates; of actions: shares, propensities, rewards."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from scorer.figure import Figure
from scorer.figure_style import COLOURS, NAMES, SEQUENTIAL, axis, layout, outlines, percent
from scorer.release.gates.evidence import Floats, Observed, ShadowEvidence

_MOST = 20
_USUAL = ("approve", "review", "decline")
"""Order of bands by score, for stored evidence without the bands of its bundle."""


def flips(evidence: ShadowEvidence) -> Figure:
    """Draw the counts of requests by the live bundle's decision and this bundle's."""
    shadow = evidence.shadow
    rows_of = shadow.take(shadow.comparable)
    is_action = evidence.kind == "action"
    live, own = (rows_of.live_top, rows_of.top) if is_action else (rows_of.live_label, rows_of.label)
    names = shadow.labels()
    codes = _by_use(np.concatenate([live, own]))
    if not is_action:
        order = list(evidence.bands or _USUAL)
        # Labels that only the live bundle has follow, the most frequent first.
        codes.sort(key=lambda code: order.index(names[code]) if names[code] in order else len(order))
    kept = codes[:_MOST]
    place = {code: at for at, code in enumerate(kept)}
    shown = [names[code] for code in kept] + (["others"] if len(codes) > _MOST else [])
    rows_at = np.array([place.get(int(code), len(kept)) for code in live], dtype=np.int64)
    columns_at = np.array([place.get(int(code), len(kept)) for code in own], dtype=np.int64)
    size = len(shown)
    counts = np.bincount(rows_at * size + columns_at, minlength=size * size).reshape(size, size)
    per_row = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    heat = {
        "type": "heatmap",
        "x": shown,
        "y": shown,
        "z": per_row.round(5).tolist(),
        "text": [[f"{count:,}" if count else "" for count in row] for row in counts.tolist()],
        "texttemplate": "%{text}" if size <= 8 else "",
        "colorscale": SEQUENTIAL,
        "zmin": 0,
        "zmax": 1,
        "xgap": 2,
        "ygap": 2,
        "hovertemplate": "live %{y} → %{x}: %{text} (%{z:.2%} of live's)<extra></extra>",
        "colorbar": {"tickformat": ".0%", "thickness": 12},
    }
    said = "likeliest action" if is_action else "decision"
    x: dict[str, Any] = {}
    y: dict[str, Any] = {}
    if is_action:
        # Names of actions are long: they are shortened, and do not meet beside each other if they stand.
        short = {"tickvals": shown, "ticktext": [_brief(name) for name in shown]}
        x, y = {**short, "tickangle": -90}, {**short, "autorange": "reversed"}
    plot = layout(
        axis(f"this bundle's {said}", type="category", **x),
        # Bands rise from the corner like scores; actions are read from the top.
        axis(f"live's {said}", type="category", **y),
        hovermode="closest",
        height=360 if size <= 8 else 560,
    )
    table = [
        (shown[i], shown[j], int(counts[i, j])) for i in range(size) for j in range(size) if counts[i, j]
    ]
    return Figure(
        "flips",
        "Decision changes",
        _flip_words(evidence, rows_of),
        {"data": [heat], "layout": plot},
        ("live", "this bundle", "requests"),
        table,
    )


def shares(evidence: ShadowEvidence) -> Figure:
    """Draw how often each action is chosen by the live bundle and would be chosen by this bundle."""
    shadow = evidence.shadow.take(evidence.shadow.comparable)
    names = evidence.shadow.labels()
    codes = _by_use(np.concatenate([shadow.live_label, shadow.label]))[:_MOST]
    rows = []
    for code in codes:
        live, own = float((shadow.live_label == code).mean()), float((shadow.label == code).mean())
        rows.append((names[code], live, own))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [row[0] for row in rows],
            "x": [row[1 + at] for row in rows],
            "name": NAMES[side],
            "marker": {"color": COLOURS[side]},
            "hovertemplate": "%{x:.2%}",
        }
        for at, side in enumerate(("live", "shadow"))
    ]
    plot = layout(
        axis("share of requests", tickformat=".0%"),
        axis("", type="category", autorange="reversed"),
        barmode="group",
        height=140 + 34 * max(len(rows), 3),
        hovermode="y unified",
    )
    far = float(np.mean(shadow.distance)) if len(shadow) else math.nan
    words = (
        f"The pmfs of a request are {percent(far)} apart on average (total variation); draws differ by "
        "design, so compare the shares, not single draws."
    )
    return Figure(
        "actions",
        "Share of each action",
        words,
        {"data": data, "layout": plot},
        ("action", "live", "this bundle"),
        rows,
    )


def rewards(evidence: ShadowEvidence) -> Figure:
    """Draw the expected rewards of the drawn actions, by each bundle's oracle."""
    shadow = evidence.shadow.take(evidence.shadow.comparable)
    edges = np.linspace(0, 1, 41)
    both = {"live": shadow.live_score, "shadow": shadow.score}
    if any(len(one) and (one.min() < 0 or one.max() > 1) for one in both.values()):
        every = np.concatenate(list(both.values()))
        edges = np.linspace(float(every.min()), float(every.max()), 41)
    return _histograms(
        both,
        edges,
        "rewards",
        "Expected reward",
        "expected reward of the drawn action",
        "Mean expected reward, each by its own oracle: "
        + ", ".join(f"{NAMES[side]} {_mean(values):.4f}" for side, values in both.items())
        + "; which policy earns more, only outcomes say.",
    )


def propensities(evidence: ShadowEvidence) -> Figure:
    """Draw the propensities of the drawn actions, which off-policy evaluation divides by."""
    shadow = evidence.shadow.take(evidence.shadow.comparable)
    both = {"live": shadow.live_propensity, "shadow": shadow.propensity}
    least = float(np.nanmin(shadow.least)) if len(shadow) and np.isfinite(shadow.least).any() else math.nan
    return _histograms(
        both,
        np.linspace(0, 1, 41),
        "propensities",
        "Propensities",
        "propensity of the drawn action",
        f"The least probability that this bundle gave an eligible action is {least:.4g}.",
    )


def _histograms(both: dict[str, Floats], edges: Floats, name: str, title: str, x: str, words: str) -> Figure:
    shares = {}
    for side, values in both.items():
        counts = np.histogram(values[np.isfinite(values)], edges)[0]
        shares[side] = counts / max(counts.sum(), 1)
    plotly, rows = outlines(shares, edges, x)
    return Figure(name, title, words, plotly, ("from", "to", *both), rows)


def _flip_words(evidence: ShadowEvidence, rows: Observed) -> str:
    if not len(rows):
        return "There are no pairs of decisions yet."
    own = float(rows.flipped.mean())
    said = f"{int(rows.flipped.sum()):,} of {len(rows):,} decisions ({percent(own)}) differ from live"
    control = evidence.control
    if len(control) and control.comparable.any():
        share = float(control.flipped[control.comparable].mean())
        return f"{said}; the A/A control, which is the live bundle, differs in {percent(share)}."
    return f"{said}; there is no A/A control to compare with."


def _by_use(codes: Any) -> list[int]:
    """Return the codes, the most frequent first."""
    found, counts = np.unique(codes, return_counts=True)
    return [int(code) for code in found[np.argsort(-counts, kind="stable")]]


def _brief(action: str) -> str:
    """Return the levels of an action without the names of their factors."""
    return ", ".join(part.partition("=")[2] or part for part in action.split("|"))


def _mean(values: Floats) -> float:
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else math.nan
