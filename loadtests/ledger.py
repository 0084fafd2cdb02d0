"""Rules that a platform's database must meet also after processes were killed; `check` returns violations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from scorer.release.audit import Audit
from scorer.release.changes import rows
from scorer.release.lanes import recorded
from scorer.release.model import ChangeKind, ChangeRequest, ChangeState, LaneSpec, Outcome
from scorer.release.states import OBSERVED
from scorer.release.store import tables as t

if TYPE_CHECKING:
    from scorer.release.store import Store

Seen = tuple[str, tuple[LaneSpec, ...], tuple[LaneSpec, ...], str]
"""Server, its answer lanes, its observe lanes, its role."""


def check(
    store: Store, checkpoints: Sequence[str], *, known: Iterable[str] = (), over: bool = True
) -> list[str]:
    """Return a sentence for each violated rule.

    Args:
        store: Database of the platform.
        checkpoints: All checkpoints.
        known: Change requests that the platform has acknowledged.
        over: Whether all change requests must be final.
    """
    problems = list(Audit(store).verify().problems)
    with store.read() as connection:
        changes = {row.id: rows.change(row) for row in connection.execute(select(t.changes))}
        problems += [f"{name} was acknowledged but is missing" for name in known if name not in changes]
        if over:
            problems += [f"{c.id} is still {c.state}" for c in changes.values() if not c.state.is_final]
        for checkpoint in checkpoints:
            problems += _bookings(connection, checkpoint)
            problems += _lanes(connection, checkpoint, changes)
            answered = {
                table.change
                for table in recorded.history(connection, checkpoint)
                if table.change and table.cause in (recorded.STAGE, recorded.RELEASE)
            }
            for name in sorted(answered):
                problems += _release(connection, changes, name)
    return problems


def strangers(store: Store, checkpoint: str, seen: Iterable[Seen]) -> list[str]:
    """Return a sentence for each lane table that a server had and that was not recorded."""
    with store.read() as connection:
        tables = recorded.history(connection, checkpoint)
    found = []
    for name, answer, observe, role in seen:
        answers = role != "live" or any(recorded.same_answer(answer, table.answer) for table in tables)
        wanted = [()] + [
            tuple(lane for lane in table.observe if lane.pool or role == "live") for table in tables
        ]
        if not answers or not any(recorded.same_observe(observe, lanes) for lanes in wanted):
            found.append(f"{name} had {answer} and {observe}, which were never recorded")
    return found


def _bookings(connection: Connection, checkpoint: str) -> list[str]:
    b = t.bookings.c
    held = connection.execute(
        select(t.bookings)
        .where(b.checkpoint == checkpoint, b.active, b.end > b.start)
        .order_by(b.slot, b.start)
    ).all()
    return [
        f"{first.change} and {second.change} both have slot {first.slot}"
        for first, second in pairwise(held)
        if first.slot == second.slot and first.end > second.start
    ]


def _lanes(connection: Connection, checkpoint: str, changes: dict[str, ChangeRequest]) -> list[str]:
    newest = recorded.newest(connection, checkpoint)
    if newest is None:
        return [f"{checkpoint} has no recorded lane table"]
    lanes = {lane.name for lane in newest.observe} - {recorded.CONTROL}
    observed = {c.id for c in changes.values() if c.checkpoint == checkpoint and c.state in OBSERVED}
    problems = (
        []
        if lanes == observed
        else [f"{checkpoint}: observe lanes are {lanes}, but changes in the shadow are {observed}"]
    )
    if abs(sum(lane.share for lane in newest.answer) - 1) > 1e-9:
        problems.append(f"{checkpoint}: shares do not add up to 1")
    return problems


def _release(connection: Connection, changes: dict[str, ChangeRequest], name: str) -> list[str]:
    """Check that a change answered only after a TEST, gates or waivers, and another user's approval."""
    change, said = changes[name], []
    test = changes.get(change.test or "")
    if test is None or (test.kind, test.state, test.verdict) != (
        ChangeKind.TEST,
        ChangeState.DONE,
        Outcome.PASS,
    ):
        said.append(f"{name} answered without a TEST that passed")
    elif (test.bundle, test.checkpoint, test.project) != (change.bundle, change.checkpoint, change.project):
        said.append(f"{name} answered after a TEST of another bundle, checkpoint or project")
    row = rows.row_of(connection, name)
    results = rows.gates(connection, name, "report")
    if rows.verdict(results) is not Outcome.PASS:
        said.append(f"{name} answered with gates that neither passed nor were waived")
    others: set[Any] = {change.approved_by} | {result.waived_by for result in results if result.waived_by}
    if not change.approved_by or others & set(row.authors):
        said.append(f"{name} answered without the approval of another person")
    order = [event.state for event in rows.events(connection, name)]
    if order.index(ChangeState.APPROVED) > order.index(ChangeState.RELEASED):
        said.append(f"{name} answered before it was approved")
    return said
