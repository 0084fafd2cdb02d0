"""Change requests of kind `overlay`: a new overlay for the live forests, published by a learning loop.

They are not observed and no person approves them. Instead, a standing permission limits how far an overlay
may move a score and how often it may be revised, and a freeze prevents them. A revision does not end a
canary: the lanes with the same forests get the new overlay, and all other lanes stay unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from scorer.release.calendar import moment
from scorer.release.changes.writer import ChangeWriter, writing
from scorer.release.lanes import recorded
from scorer.release.lanes.recorded import LaneDecision
from scorer.release.model import ChangeKind, ChangeRequest, ChangeState, LaneSpec, Severity
from scorer.release.store import tables as t

if TYPE_CHECKING:
    from scorer.release.bundles import Bundles
    from scorer.release.changes.parts import Parts

VERDICT = "gate"
"""Name of the metric in a bundle's lineage that contains the learning gate's verdict."""
STEPS = ("package", "verify", "golden", "overlay")
"""The checks of an overlay's revision."""


def revised_lanes(answer: Sequence[LaneSpec], bundle: str, bundles: Bundles) -> list[LaneSpec]:
    """Return the answer lanes with the same forests as a revision, which will get the revision.

    The lane of a canary is not among them, because its gates compare one bundle over the whole stage.

    Args:
        answer: The present answer lanes.
        bundle: Digest of the revision.
        bundles: The bundles.
    """
    return [
        lane
        for lane in answer
        if lane.name != recorded.CANARY and not bundles.differences(bundle, lane.bundle)
    ]


class Overlays:
    """The steps of an overlay revision in the states `approved` and `released`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def advance(self, change: ChangeRequest) -> None:
        """Do at most one step."""
        if change.state is ChangeState.APPROVED:
            self._publish(change)
        else:
            self._follow(change)

    def _publish(self, change: ChangeRequest) -> None:
        """Record the table with the new overlay unless a freeze, the permission or the lanes forbid it."""
        frozen = self._parts.calendar.frozen(change.checkpoint)
        with self._parts.store.read() as connection:
            newest = recorded.newest(connection, change.checkpoint)
        lanes = revised_lanes(newest.answer, change.bundle, self._parts.bundles) if newest else []
        with writing(self._parts, change) as work:
            last = recorded.newest(work.connection, change.checkpoint)
            if last is None or newest is None or last.revision != newest.revision:
                return
            if frozen:
                until = moment(frozen.end)
                words = f'frozen by "{frozen.freeze.name}" until {until}; the next overlay is fitted anew'
                _reject(work, "expire", words)
                return
            refusal = self._parts.permissions.holds(work.connection, change.permission)
            if not refusal and not lanes:
                refusal = "what answers by now has other forests, and the overlay was fitted to those before"
            if refusal:
                _reject(work, "refused", refusal)
                return
            if other := _completing(work.connection, change):
                words = f"waits until {other} is released"
                work.step(words, status="waiting")
                return
            taken = {lane.name for lane in lanes}
            before = recorded.main_lane(lanes).bundle
            answer = tuple(
                replace(lane, bundle=change.bundle) if lane.name in taken else lane for lane in last.answer
            )
            work.step("permitted", status="done")
            work.move(
                "release",
                f"published under {change.permission}: lane {', '.join(sorted(taken))}",
                step="full",
                details={"before": before, "permission": change.permission, "lanes": sorted(taken)},
                decision=LaneDecision(recorded.OVERLAY, answer, alias=change.bundle, alias_from=before),
                before=before,
            )

    def _follow(self, change: ChangeRequest) -> None:
        """Wait until every server has the table, or a later one that has replaced it."""
        with self._parts.store.read() as connection:
            newest = recorded.newest(connection, change.checkpoint)
        revision = newest.revision if newest else 0
        is_there = bool(newest and any(lane.bundle == change.bundle for lane in newest.answer))
        behind = self._parts.reconciler.behind(change.checkpoint, revision) if is_there else {}
        with writing(self._parts, change) as work:
            if behind:
                why = "; ".join(f"{name}: {words}" for name, words in sorted(behind.items()))
                work.step(f"waits for {why}", status="waiting")
                return
            words = "every server answers with it" if is_there else f"replaced by table {revision}"
            work.step(words, status="done")
            work.move("completed", words)


def _reject(work: ChangeWriter, move: str, why: str) -> None:
    work.step(why, status="failed")
    work.move(move, f"not published: {why}", severity=Severity.WARNING)


def _completing(connection: Connection, change: ChangeRequest) -> str | None:
    """Return the release that is moving the registry's alias, if any. An overlay revision waits for it."""
    c = t.changes.c
    query = select(c.id).filter_by(
        checkpoint=change.checkpoint, state=ChangeState.RELEASED, kind=ChangeKind.RELEASE
    )
    return connection.scalar(query.where(c.step.in_(["full", "alias"])))
