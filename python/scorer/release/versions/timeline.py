"""The versions of a checkpoint over time: one metric, and the parameters that changed between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from scorer.figure import Figure
from scorer.figure_style import CONTROL, SERIES, SYMBOLS, axis, layout, scatter
from scorer.release.errors import InvalidError
from scorer.release.version_answers import Timeline, TimelineEntry, Version
from scorer.release.versions import lineage

_MOST = 500
_LEGEND = 8
_DATA = "data_digest"
_IDENTITY = "run_id"


def timeline(checkpoint: str, versions: Sequence[Version], *, metric: str | None, by: str | None) -> Timeline:
    """Return a timeline of versions.

    Args:
        checkpoint: Name of the checkpoint.
        versions: In any order. The newest 500 are shown.
        metric: Name of the metric; None: the main one.
        by: Parameter whose values the chart tells apart; None: the data, where it differs.

    Raises:
        InvalidError: No version has the metric or the parameter.
    """
    every = sorted(versions, key=lambda one: (one.bundle.uploaded_at or one.first_at, one.first_at))
    shown = every[-_MOST:]
    metrics = lineage.ordered(Counter(name for one in shown for name in one.metrics))
    varying = _varying(shown)
    chosen = _one_of("metric", metric, metrics, metrics[0] if metrics else "")
    known = dict.fromkeys(name for one in shown for name in one.parameters)
    group = _one_of("parameter", by, tuple(known), _DATA if _DATA in varying else "")
    entries = []
    previous: Mapping[str, str] | None = None
    for one in shown:
        changed = {
            name: (previous.get(name) or "")
            for name in varying
            if previous is not None and previous.get(name) != one.parameters.get(name)
        }
        entries.append(TimelineEntry(one, one.metrics.get(chosen), changed))
        previous = one.parameters
    return Timeline(
        checkpoint=checkpoint,
        metric=chosen,
        by=group,
        metrics=metrics,
        parameters=tuple(varying),
        entries=tuple(entries),
        omitted=len(every) - len(shown),
        figure=_figure(entries, chosen, group),
    )


def _one_of(what: str, name: str | None, known: Sequence[str], default: str) -> str:
    if name is None:
        return default
    if name not in known:
        raise InvalidError(
            f'no version has a {what} "{name[:80]}"; '
            + (f"use one of {', '.join(known[:30])}" if known else "there is none to choose")
        )
    return name


def _varying(versions: Sequence[Version]) -> list[str]:
    """Return the parameters that differ between two versions, in the order in which lineages name them."""
    names = dict.fromkeys(name for one in versions for name in one.parameters)
    # Every run has an id of its own, which tells nothing about what changed.
    return [
        name
        for name in names
        if name != _IDENTITY and len({one.parameters.get(name) for one in versions}) > 1
    ]


def _figure(entries: Sequence[TimelineEntry], metric: str, by: str) -> Figure | None:
    points = [(one, one.value) for one in entries if one.value is not None]
    if not points:
        return None
    times = [(one.version.bundle.uploaded_at or one.version.first_at).isoformat() for one, _ in points]
    columns = ("uploaded", "version", "place", metric, *((by,) if by else ()))
    rows: list[tuple[Any, ...]] = []
    groups: dict[str, list[int]] = {}
    for at, (one, value) in enumerate(points):
        own = one.version.parameters.get(by, "") if by else ""
        row = (times[at], one.version.bundle.digest, str(one.version.place), value)
        rows.append((*row, own) if by else row)
        groups.setdefault(own, []).append(at)
    # One thin line joins all versions; the markers tell the values of the parameter apart.
    data = [
        scatter(
            times,
            [value for _, value in points],
            "all versions",
            line={"color": CONTROL, "width": 1.5},
            hoverinfo="skip",
            showlegend=False,
        )
    ]
    for place, (own, members) in enumerate(groups.items()):
        style = place if place < _LEGEND else _LEGEND - 1
        data.append(
            scatter(
                [times[at] for at in members],
                [points[at][1] for at in members],
                _short(own) or "unknown",
                mode="markers",
                marker={"color": SERIES[style % len(SERIES)], "symbol": SYMBOLS[style], "size": 10},
                text=[_short(points[at][0].version.bundle.digest) for at in members],
                hovertemplate="%{text}: %{y:.5g}",
                showlegend=bool(by) and place < _LEGEND,
            )
        )
    last = points[-1][1]
    best = max(points, key=lambda one: one[1])
    words = (
        f"{len(points)} of {len(entries)} versions have {metric}; the newest has {last:.5g}, the largest "
        f"value is {best[1]:.5g} ({_short(best[0].version.bundle.digest)})."
    )
    words += f" The markers tell the values of {by} apart." if by else ""
    plot = layout(axis("uploaded (UTC)", type="date"), axis(metric), hovermode="closest", showlegend=bool(by))
    return Figure(
        "timeline", f"{metric} of the versions", words, {"data": data, "layout": plot}, columns, rows
    )


def _short(text: str) -> str:
    return text.removeprefix("sha256:")[:12] if text.startswith("sha256:") else text[:24]
