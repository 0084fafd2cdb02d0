"""Recorded lane tables: the desired lanes of a checkpoint from a given time on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, func, insert, select

from scorer.release.model import ChangeKind, ChangeState, LaneSpec, RecordedTable
from scorer.release.states import OBSERVED
from scorer.release.store import tables as t
from scorer.release.store.rows import read, row_of

if TYPE_CHECKING:
    from scorer.release.fleet import CheckpointStatus
    from scorer.release.settings import PlatformFile

LIVE, CANARY, HOLDOUT, CONTROL = "live", "canary", "holdout", "aa"
FOUND, BREAK_GLASS, SHADOW, STAGE, RELEASE, OVERLAY, ROLLBACK, SAMPLING = (
    "found",
    "break glass",
    "shadow",
    "stage",
    "release",
    "overlay",
    "rollback",
    "sampling",
)
"""Causes of a table, in this order: lanes detected at a server, a change there with `--break-glass`, the
observe lanes of a change request, a stage of its canary, its share of 100 %, a revision of the overlay, a
rollback, a change of the sampling."""

DECIDING = (FOUND, BREAK_GLASS, STAGE, RELEASE, ROLLBACK)
"""Causes that determine which release answers. A revision of the overlay does not."""

_TINY = 1e-9
_PORTION = 100
"""Tables that `earlier` reads at first; each further query reads four times as many."""


def same_answer(a: Sequence[LaneSpec], b: Sequence[LaneSpec]) -> bool:
    """Whether two lists of answer lanes are equal, including their order."""
    return len(a) == len(b) and all(
        (x.name, x.bundle) == (y.name, y.bundle) and abs(x.share - y.share) < _TINY
        for x, y in zip(a, b, strict=True)
    )


def same_observe(a: Sequence[LaneSpec], b: Sequence[LaneSpec]) -> bool:
    """Whether two lists of observe lanes are equal, regardless of their order."""

    def key(lane: LaneSpec) -> tuple[Any, ...]:
        conditions = json.dumps(json.loads(lane.filter), sort_keys=True) if lane.filter else ""
        return (
            lane.name,
            lane.bundle,
            round(lane.sample, 9),
            "" if conditions == "[]" else conditions,
            lane.pool,
        )

    return sorted(map(key, a)) == sorted(map(key, b))


def has(newest: RecordedTable | None, mine: CheckpointStatus | None, role: str) -> bool:
    """Whether a server is in sync. A server of the shadow pool needs only the lanes of the pool."""
    if newest is None:
        return False
    observe = mine.observe if mine else ()
    if role != "live":
        return same_observe(observe, [lane for lane in newest.observe if lane.pool])
    return (
        bool(mine)
        and same_answer(mine.answer if mine else (), newest.answer)
        and same_observe(observe, newest.observe)
    )


def main_lane(answer: Sequence[LaneSpec]) -> LaneSpec:
    """Return the answer lane with the largest share."""
    return max(answer, key=lambda lane: lane.share)


def newest(connection: Connection, checkpoint: str) -> RecordedTable | None:
    """Return the table in force; None until a server of the checkpoint has been read."""
    return next(iter(history(connection, checkpoint, limit=1)), None)


def live_reference(connection: Connection, settings: PlatformFile, checkpoint: str) -> str:
    """Return the digest of the bundle that answers at a checkpoint; its alias where no table is recorded."""
    table = newest(connection, checkpoint)
    return main_lane(table.answer).bundle if table else settings.checkpoints[checkpoint].alias


def count(connection: Connection, cause: str) -> dict[str, int]:
    """Return the number of tables with a cause, by checkpoint."""
    r = t.recorded_tables.c
    query = select(r.checkpoint, func.count()).where(r.cause == cause).group_by(r.checkpoint)
    return {row.checkpoint: int(row[1]) for row in connection.execute(query)}


def history(
    connection: Connection, checkpoint: str, *, limit: int | None = None, since: int = 0
) -> list[RecordedTable]:
    """Return the recorded tables from revision `since` on, newest first."""
    r = t.recorded_tables.c
    rows = connection.execute(
        select(t.recorded_tables)
        .where(r.checkpoint == checkpoint, r.revision >= since)
        .order_by(r.revision.desc())
        .limit(limit)
    )
    return [read(RecordedTable, row) for row in rows]


@dataclass(frozen=True, slots=True)
class LaneDecision:
    """The cause of a new table, and its changes other than those of the observe lanes."""

    cause: str
    """One of the causes of this module, for example `STAGE`."""
    answer: Sequence[LaneSpec] | None = None
    """Answer lanes; None: those of the newest table."""
    alias: str | None = None
    """Digest that the registry's alias points to afterwards; None: unchanged."""
    alias_from: str | None = None
    """Digest that the alias must point to before; None: any."""
    restores: int | None = None
    """Of a rollback: the revision whose answer lanes it restores."""


def record(
    connection: Connection,
    settings: PlatformFile,
    checkpoint: str,
    decision: LaneDecision,
    *,
    at: datetime,
    actor: str,
    change: str | None = None,
) -> RecordedTable | None:
    """Record a new table, whose observe lanes are those of the change requests being observed.

    Args:
        connection: Connection of the transaction that decides on the table.
        settings: The checkpoints' settings.
        checkpoint: Name of the checkpoint.
        decision: Cause and answer lanes of the table.
        at: Current time.
        actor: Name of the user who decides.
        change: Id of the change request that the table belongs to.

    Returns:
        The new table; the newest one if nothing differs; None if no server of the checkpoint was read yet.
    """
    last = newest(connection, checkpoint)
    if decision.answer is None and last is None:
        return None
    answer = last.answer if decision.answer is None and last else decision.answer or ()
    observe = shadow_lanes(connection, settings, checkpoint, answer)
    is_same = last and same_answer(answer, last.answer) and same_observe(observe, last.observe)
    if is_same and decision.alias is None:
        return last
    values = {name: getattr(decision, name) for name in ("cause", "alias", "alias_from", "restores")}
    done = connection.execute(
        insert(t.recorded_tables)
        .values(
            checkpoint=checkpoint,
            revision=last.revision + 1 if last else 1,
            answer=answer,
            observe=observe,
            at=at,
            actor=actor,
            change=change,
            alias_done=decision.alias is None,
            **values,
        )
        .returning(t.recorded_tables)
    )
    return read(RecordedTable, done.one())


def shadow_lanes(
    connection: Connection, settings: PlatformFile, checkpoint: str, answer: Sequence[LaneSpec]
) -> tuple[LaneSpec, ...]:
    """Return one observe lane per change request being observed, and the A/A control.

    The control observes the bundle of the answer lane with the largest share.
    """
    c = t.changes.c
    rows = connection.execute(
        select(c.id, c.bundle, c.sample, c.pool)
        .where(c.checkpoint == checkpoint, c.state.in_([state.value for state in OBSERVED]))
        .order_by(c.number)
    ).all()
    if not rows:
        return ()
    sample, conditions, pool = sampling(connection, settings, checkpoint)
    lanes = tuple(
        LaneSpec(
            name=row.id,
            bundle=row.bundle,
            mode="observe",
            sample=row.sample or sample,
            filter=conditions,
            pool=pool if row.pool is None else row.pool,
        )
        for row in rows
    )
    # Samples are nested, so the control with the largest one contains every other lane's requests.
    control = LaneSpec(
        name=CONTROL,
        bundle=main_lane(answer).bundle,
        mode="observe",
        sample=max(lane.sample for lane in lanes),
        filter=conditions,
        pool=all(lane.pool for lane in lanes),
    )
    return (*lanes, control)


def sampling(connection: Connection, settings: PlatformFile, checkpoint: str) -> tuple[float, str, bool]:
    """Return the sampling of a checkpoint's observe lanes: share, filter, and whether the pool is used."""
    usual = settings.checkpoints[checkpoint]
    row = row_of(connection, t.sampling, checkpoint=checkpoint)
    if row is None:
        return usual.sample, usual.filter, usual.pool
    return row.sample, row.filter, usual.pool if row.pool is None else row.pool


def before_release(connection: Connection, checkpoint: str, change: str) -> RecordedTable | None:
    """Return the last table before a change request answered requests. Its rollback restores that table."""
    r = t.recorded_tables.c
    first = connection.scalar(
        select(func.min(r.revision)).where(
            r.checkpoint == checkpoint, r.change == change, r.cause.in_([STAGE, RELEASE])
        )
    )
    if first is None:
        return None
    row = connection.execute(
        select(t.recorded_tables)
        .where(r.checkpoint == checkpoint, r.revision < first)
        .order_by(r.revision.desc())
        .limit(1)
    ).first()
    return read(RecordedTable, row) if row else None


def with_latest_overlays(
    connection: Connection, checkpoint: str, answer: Sequence[LaneSpec]
) -> tuple[LaneSpec, ...]:
    """Replace each lane's bundle by the latest revision of its overlay that was not rolled back."""
    return tuple(
        replace(lane, bundle=_latest_overlay(connection, checkpoint, lane.bundle)) for lane in answer
    )


def _latest_overlay(connection: Connection, checkpoint: str, bundle: str) -> str:
    c = t.changes.c
    seen = {bundle}
    while True:
        following = connection.execute(
            select(c.bundle)
            .where(
                c.before == bundle,
                c.checkpoint == checkpoint,
                c.kind == ChangeKind.OVERLAY.value,
                c.state.in_([ChangeState.RELEASED.value, ChangeState.DONE.value]),
            )
            .order_by(c.number.desc())
            .limit(1)
        ).scalar()
        if following is None or following in seen:
            return bundle
        seen.add(following)
        bundle = following


def deciding(connection: Connection, checkpoint: str) -> RecordedTable | None:
    """Return the newest table that determined which release answers."""
    r = t.recorded_tables.c
    row = connection.execute(
        select(t.recorded_tables)
        .where(r.checkpoint == checkpoint, r.cause.in_(DECIDING))
        .order_by(r.revision.desc())
        .limit(1)
    ).first()
    return read(RecordedTable, row) if row else None


def earlier(connection: Connection, checkpoint: str) -> RecordedTable | None:
    """Return the table before the present release, ignoring releases that were rolled back; None if none.

    A second rollback therefore goes one release further back and never returns to the one that the first
    rollback left. The function reads only tables that determine which release answers, newest first and in
    batches. Overlay revisions, which arrive every few minutes, are excluded.
    """
    r = t.recorded_tables.c
    limit = _PORTION
    while True:
        rows = connection.execute(
            select(t.recorded_tables)
            .where(r.checkpoint == checkpoint, r.cause.in_(DECIDING))
            .order_by(r.revision.desc())
            .limit(limit)
        ).all()
        stack, is_whole = _decisions(rows[::-1])
        if len(rows) < limit:
            return stack[-2] if len(stack) > 1 else None
        if is_whole and len(stack) > 1:
            return stack[-2]
        limit *= 4


def _decisions(rows: Sequence[Any]) -> tuple[list[RecordedTable], bool]:
    """Replay tables, oldest first, and drop those that were rolled back.

    Returns:
        The remaining tables, and whether every rollback was resolved within these rows.
    """
    stack: list[RecordedTable] = []
    is_whole = True
    for row in rows:
        each = read(RecordedTable, row)
        if each.cause == ROLLBACK:
            while stack and not (
                stack[-1].revision <= row.restores
                if row.restores is not None
                else same_answer(stack[-1].answer, each.answer)
            ):
                stack.pop()
            is_whole = is_whole and bool(stack)
        elif stack and each.cause == RELEASE and each.change == stack[-1].change:
            stack[-1] = each
        elif not (
            stack
            and (
                same_answer(stack[-1].answer, each.answer)
                or (each.change and stack[-1].change == each.change)
            )
        ):
            stack.append(each)
    return stack, is_whole
