"""Changes of kind `overlay`: the next overlay on the forests that answer, published by a learning loop.

They are measured in no shadow and approved by no person: a standing permission bounds how far an overlay may
move a score and how often it may be revised, and a freeze stops it. A revision ends no canary: the lanes that
answer with the same forests take the new overlay, and all other lanes stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from scorer.release.calendar import moment
from scorer.release.lanes import recorded
from scorer.release.model import PLATFORM, ChangeKind, ChangeRequest, ChangeState, LaneSpec, Severity
from scorer.release.store import tables as t

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from scorer.release.bundles import Bundles
    from scorer.release.calendar import Calendar
    from scorer.release.changes.ledger import Ledger
    from scorer.release.lanes.reconcile import Reconciler
    from scorer.release.permissions import Permissions
    from scorer.release.store import Store

VERDICT = "gate"
"""Where the lineage metrics of a bundle keep the learning gate's verdict."""
STEPS = ("package", "verify", "golden", "overlay")
"""The checks of an overlay's revision."""


def revised_lanes(answer: Sequence[LaneSpec], bundle: str, bundles: Bundles) -> list[LaneSpec]:
    """The lanes that answer with the forests of a bundle: those that its overlay is for.

    A canary's own lane is none of them: what it is judged by must stay what it is.
    """
    return [
        lane
        for lane in answer
        if lane.name != recorded.CANARY and not bundles.differences(bundle, lane.bundle)
    ]


class Overlays:
    """The states `approved` and `released` of an overlay's revision.

    Args:
        store: Changes and recorded tables.
        ledger: Writes moves.
        bundles: Compares bundles.
        calendar: Knows freezes.
        permissions: What it was submitted under.
        reconciler: Knows which servers have it.
        now: The time.
    """

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        bundles: Bundles,
        calendar: Calendar,
        permissions: Permissions,
        reconciler: Reconciler,
        now: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._bundles = bundles
        self._calendar = calendar
        self._permissions = permissions
        self._reconciler = reconciler
        self._now = now

    def advance(self, change: ChangeRequest) -> None:
        """Do at most one step."""
        if change.state is ChangeState.APPROVED:
            self._publish(change)
        else:
            self._follow(change)

    def _publish(self, change: ChangeRequest) -> None:
        """Record the table with the new overlay, unless a freeze, its permission or the lanes forbid it."""
        frozen = self._calendar.frozen(change.checkpoint)
        with self._store.read() as connection:
            newest = recorded.newest(connection, change.checkpoint)
        lanes = revised_lanes(newest.answer, change.bundle, self._bundles) if newest else []
        with self._store.write() as connection:
            last = recorded.newest(connection, change.checkpoint)
            if last is None or newest is None or last.revision != newest.revision:
                return
            if frozen:
                until = moment(frozen.end)
                words = f'frozen by "{frozen.freeze.name}" until {until}; the next overlay is fitted anew'
                self._move(connection, change, "expire", words)
                return
            refusal = self._permissions.holds(connection, change.permission)
            if not refusal and not lanes:
                refusal = "what answers by now has other forests, and the overlay was fitted to those before"
            if refusal:
                self._move(connection, change, "refused", refusal)
                return
            if other := _completing(connection, change):
                words = f"waits until {other} is released"
                self._ledger.step(connection, change, words, status="waiting")
                return
            taken = {lane.name for lane in lanes}
            before = recorded.main_lane(lanes).bundle
            answer = tuple(
                replace(lane, bundle=change.bundle) if lane.name in taken else lane for lane in last.answer
            )
            self._ledger.step(connection, change, "permitted", status="done")
            self._ledger.move(
                connection,
                change,
                "release",
                PLATFORM,
                f"published under {change.permission}: lane {', '.join(sorted(taken))}",
                step="full",
                details={"before": before, "permission": change.permission, "lanes": sorted(taken)},
                answer=answer,
                cause=recorded.OVERLAY,
                alias=change.bundle,
                alias_from=before,
                before=before,
            )

    def _follow(self, change: ChangeRequest) -> None:
        """Wait until every server has it; a later table may have replaced it by then."""
        with self._store.read() as connection:
            newest = recorded.newest(connection, change.checkpoint)
        revision = newest.revision if newest else 0
        is_there = bool(newest and any(lane.bundle == change.bundle for lane in newest.answer))
        behind = self._reconciler.behind(change.checkpoint, revision) if is_there else {}
        with self._store.write() as connection:
            if behind:
                why = "; ".join(f"{name}: {words}" for name, words in sorted(behind.items()))
                self._ledger.step(connection, change, f"waits for {why}", status="waiting")
                return
            words = "every server answers with it" if is_there else f"replaced by table {revision}"
            self._ledger.step(connection, change, words, status="done")
            self._ledger.move(connection, change, "completed", PLATFORM, words)

    def _move(self, connection: Connection, change: ChangeRequest, name: str, why: str) -> None:
        self._ledger.step(connection, change, why, status="failed")
        self._ledger.move(
            connection, change, name, PLATFORM, f"not published: {why}", severity=Severity.WARNING
        )


def _completing(connection: Connection, change: ChangeRequest) -> Any:
    """A release that is about to move the registry's alias: an overlay comes after that."""
    c = t.changes.c
    return connection.execute(
        select(c.id).where(
            c.checkpoint == change.checkpoint,
            c.kind == ChangeKind.RELEASE.value,
            c.state == ChangeState.RELEASED.value,
            c.step.in_(["full", "alias"]),
        )
    ).scalar()
