"""Figures of what was seen at all: drops over time, hours of the week."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scorer.release.answers import Figure
from scorer.release.gates.evidence import Counter, ShadowEvidence
from scorer.release.gates.metrics import hours_of_week
from scorer.release.readout.figures.times import buckets, moment
from scorer.release.readout.style import AMBER, BAD, COLOURS, SEQUENTIAL, axis, layout, percent

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_WEEK = 168
KINDS = ("taken", "dropped", "shed", "failed", "unlogged")
_COLOURS = (COLOURS["shadow"], AMBER, COLOURS["control"], BAD, COLOURS["live"])


def totals(counters: Sequence[Counter]) -> dict[str, int]:
    """What was counted in all: the sum of increases, as counters begin anew with their lane."""
    found = dict.fromkeys(("seen", "left_out", "evaluated", *KINDS), 0)
    for one in increases(counters):
        for kind in found:
            found[kind] += one[kind]
    return found


def account(counters: Sequence[Counter], observed: int) -> dict[str, int]:
    """What became of a checkpoint's requests; the same five numbers wherever a report counts them.

    Args:
        counters: Readings of the change's lane at every server.
        observed: Observations that the platform has.

    Returns:
        `requests`: that came by while the lane was there. `eligible`: of these, not left out by its filter or
        sample. `taken`: of these, taken by the lane. `observed`: of these, evaluated and read from a log.
        `dropped`: taken, and not evaluated (the queue was full, or the server under pressure). `missing`:
        taken, and neither observed nor dropped: under way, not logged, or lost with a server or the pool.
        Counters begin anew with their server, so what it counted since the last reading is not known: each
        number is at least the one that follows from it.
    """
    found = totals(counters)
    dropped = found["dropped"] + found["shed"]
    taken = max(found["taken"], observed + dropped) if counters else observed
    eligible = max(found["seen"] - found["left_out"], taken)
    return {
        "requests": max(found["seen"], eligible),
        "eligible": eligible,
        "taken": taken,
        "observed": observed,
        "dropped": dropped,
        "missing": taken - observed - dropped,
    }


def increases(counters: Sequence[Counter]) -> list[dict[str, Any]]:
    """By how much each counter of each server grew from one reading to the next."""
    found = []
    last: dict[tuple[str, str], Counter] = {}
    for one in sorted(counters, key=lambda c: c.at):
        before = last.get((one.server, one.lane))
        # Less than before: the lane, or its server, was begun again.
        fresh = before is None or any(
            getattr(one, kind) < getattr(before, kind) for kind in ("seen", "taken", "evaluated")
        )
        step: dict[str, Any] = {"at": one.at, "server": one.server}
        for kind in ("seen", "left_out", "evaluated", *KINDS):
            now = getattr(one, kind)
            step[kind] = now if fresh or before is None else max(now - getattr(before, kind), 0)
        found.append(step)
        last[one.server, one.lane] = one
    return found


def drops(evidence: ShadowEvidence) -> Figure:
    """Requests that the lane took, and those that it did not get to."""
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
        ]
    plot = layout(axis("time (UTC)", type="date"), axis("requests"), barmode="group")
    return Figure(
        "drops", "Drops", _drop_words(evidence), {"data": data, "layout": plot}, ("time", *KINDS), rows
    )


def coverage(evidence: ShadowEvidence) -> Figure:
    """Observations by hour of the week, in UTC."""
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
    found = totals(evidence.counters)
    counts = account(evidence.counters, len(evidence.shadow))
    errors = int((evidence.shadow.error > 0).sum())
    if not evidence.counters:
        return f"The servers' counters are not known; {errors:,} observations have no score."
    share = percent(counts["dropped"] / counts["taken"]) if counts["taken"] else "none"
    return (
        f"{counts['requests']:,} requests, {counts['eligible']:,} eligible, {counts['taken']:,} taken; "
        f"of these {counts['observed']:,} were observed, {counts['dropped']:,} ({share}) dropped or shed and "
        f"{counts['missing']:,} are missing; {found['failed']:,} have no score."
    )
