"""Figures of coverage: dropped requests over time, and observations by hour of the week."""

from __future__ import annotations

from typing import Any

import numpy as np

from scorer.figure import Figure
from scorer.figure_style import AMBER, BAD, COLOURS, SEQUENTIAL, axis, layout, percent
from scorer.release.gates.counting import KINDS, account, increases, observations
from scorer.release.gates.evidence import ShadowEvidence
from scorer.release.gates.metrics import hours_of_week
from scorer.release.readout.figures.times import buckets, moment

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_WEEK = 168
_COLOURS = (COLOURS["shadow"], AMBER, COLOURS["control"], BAD, COLOURS["live"])


def drops(evidence: ShadowEvidence) -> Figure:
    """Draw the requests that the lane took and those that it could not evaluate."""
    steps = increases(evidence.counters)
    rows: list[tuple[Any, ...]] = []
    data = []
    if steps:
        at = np.array([step["at"] for step in steps], dtype=np.int64)
        bucket, _ = buckets(at)
        starts, place = np.unique(bucket, return_inverse=True)
        by_kind = {
            kind: np.bincount(place, weights=[step[kind] for step in steps], minlength=len(starts))
            for kind in KINDS
        }
        times = [moment(int(start)) for start in starts]
        rows = [(time, *(int(by_kind[kind][i]) for kind in KINDS)) for i, time in enumerate(times)]
        data = [
            {
                "type": "bar",
                "x": times,
                "y": by_kind[kind].astype(int).tolist(),
                "name": kind,
                "marker": {"color": colour},
                "hovertemplate": "%{y:,}",
            }
            for kind, colour in zip(KINDS, _COLOURS, strict=True)
            # A kind that never occurs would only make the bars of the others narrower.
            if kind == KINDS[0] or by_kind[kind].any()
        ]
    plot = layout(axis("time (UTC)", type="date"), axis("requests"), barmode="group")
    return Figure(
        "drops", "Drops", _drop_words(evidence), {"data": data, "layout": plot}, ("time", *KINDS), rows
    )


def coverage(evidence: ShadowEvidence) -> Figure:
    """Draw the observations by hour of the week, in UTC."""
    hours = hours_of_week(evidence.shadow.at)
    counts = np.bincount(hours, minlength=_WEEK).reshape(7, 24)
    heat = {
        "type": "heatmap",
        "x": list(range(24)),
        "y": list(DAYS),
        "z": counts.tolist(),
        "colorscale": SEQUENTIAL,
        "zmin": 0,
        "zmax": max(int(counts.max()), 1),
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": "%{y} %{x}:00: %{z:,} observations<extra></extra>",
        "hoverongaps": False,
        "colorbar": {"title": {"text": "rows"}, "thickness": 12, "tickformat": ",d", "nticks": 4},
    }
    plot = layout(
        axis("hour (UTC)", dtick=3, range=[-0.5, 23.5], showgrid=False),
        axis("", type="category", autorange="reversed", showgrid=False),
        hovermode="closest",
        height=300,
    )
    covered = int((counts > 0).sum())
    words = f"{covered} of the week's {_WEEK} hours were seen."
    rows = [
        (DAYS[day], hour, int(counts[day, hour]))
        for day in range(7)
        for hour in range(24)
        if counts[day, hour]
    ]
    return Figure(
        "coverage",
        "Hours of the week",
        words,
        {"data": [heat], "layout": plot},
        ("day", "hour", "rows"),
        rows,
    )


def _drop_words(evidence: ShadowEvidence) -> str:
    counts = account(evidence.counters, observations(evidence))
    errors = int((evidence.shadow.error > 0).sum())
    if not evidence.counters:
        return f"The servers' counters are not known; {errors:,} observations have no score."
    share = percent(counts.not_observed / counts.taken) if counts.taken else "none"
    return (
        f"{counts.requests:,} requests, {counts.eligible:,} eligible, {counts.taken:,} taken; of these "
        f"{counts.observed:,} were observed, {counts.dropped:,} dropped, {counts.shed:,} shed and "
        f"{counts.failed:,} failed ({share} not observed); {errors:,} observations have no score."
    )
