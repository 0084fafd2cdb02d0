"""Releases, canary stages and rollbacks in a window, which every chart marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from scorer.figure_style import CONTROL
from scorer.release.answers import ReleaseMark
from scorer.release.lanes import recorded
from scorer.release.lanes.recorded import main_lane
from scorer.release.readout.figures.times import moment
from scorer.release.store import instant, micros
from scorer.release.store.tables import recorded_tables
from scorer.release.timeseries.windows import MetricsWindow

if TYPE_CHECKING:
    from scorer.release.store import Store

_CAUSES: Final = (recorded.STAGE, recorded.RELEASE, recorded.ROLLBACK, recorded.BREAK_GLASS)
MOST: Final = 200
"""Limit on the marks of a window, the newest ones."""
_NEAR: Final = 0.05
"""Marks that are closer than this share of the window share a number, so that numbers do not overlap."""


def marks_of(store: Store, checkpoint: str, window: MetricsWindow) -> tuple[ReleaseMark, ...]:
    """Return the recorded tables of a window that changed which version answers, the oldest first."""
    r = recorded_tables.c
    query = (
        select(r.at, r.cause, r.change, r.answer, r.revision)
        .where(
            r.checkpoint == checkpoint,
            r.cause.in_(_CAUSES),
            r.at >= instant(window.start),
            r.at <= instant(window.end),
        )
        .order_by(r.revision.desc())
        .limit(MOST)
    )
    with store.read() as connection:
        rows = connection.execute(query).all()
    return tuple(
        ReleaseMark(
            at=row.at,
            cause=row.cause,
            change=row.change,
            bundle=main_lane(row.answer).bundle if row.answer else "",
            revision=row.revision,
            lanes=", ".join(f"{lane.name} {lane.share:.0%}" for lane in row.answer),
        )
        for row in reversed(rows)
    )


def drawn(marks: Sequence[ReleaseMark], window: MetricsWindow) -> dict[str, Any]:
    """Return the marks as `shapes` and `annotations` of a layout. A number links to its change request."""
    line = {"color": CONTROL, "width": 1, "dash": "dot"}
    shapes = [
        {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": at, "x1": at, "line": line}
        for at in (moment(micros(mark.at)) for mark in marks)
    ]
    annotations = []
    groups: list[list[int]] = []
    for place, mark in enumerate(marks):
        near = groups and micros(mark.at) - micros(marks[groups[-1][0]].at) < _NEAR * (
            window.end - window.start
        )
        if near:
            groups[-1].append(place)
        else:
            groups.append([place])
    for group in groups:
        first, last = group[0], group[-1]
        text = f"{first + 1}" if first == last else f"{first + 1}\N{EN DASH}{last + 1}"
        change = next((marks[place].change for place in group if marks[place].change), None)
        annotations.append(
            {
                "x": moment(micros(marks[first].at)),
                "y": 1,
                "yref": "paper",
                "xanchor": "center",
                "yanchor": "bottom",
                "showarrow": False,
                "text": f'<a href="/changes/{change}" target="_self">{text}</a>' if change else text,
                "hovertext": "; ".join(
                    f"{marks[place].cause} {marks[place].change or ''}" for place in group
                ),
            }
        )
    return {"shapes": shapes, "annotations": annotations}
