"""Reading and writing the database rows of change requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, delete, insert, select

from scorer.release.answers import Step
from scorer.release.errors import NotFoundError
from scorer.release.model import (
    ChangeEvent,
    ChangeRequest,
    ChangeState,
    GateResult,
    GateSpec,
    Outcome,
    Stage,
)
from scorer.release.store import tables as t
from scorer.release.store.rows import read
from scorer.release.store.rows import row_of as find

if TYPE_CHECKING:
    from datetime import datetime


BACKTEST = "backtest"
"""Phase of the gates, and name of the step, before the observation."""


def change(row: Row[Any]) -> ChangeRequest:
    """Convert a database row to a change request."""
    return read(ChangeRequest, row, skipped=row.skipped or (), reviewers=row.reviewers or ())


def plain(value: Sequence[Stage] | Sequence[GateSpec]) -> list[dict[str, Any]]:
    """Return stages or gates as JSON values."""
    return [asdict(each) for each in value]


def row_of(connection: Connection, name: str) -> Row[Any]:
    """Return the row of a change request, with the columns of the pipeline. Raises NotFoundError."""
    found = find(connection, t.changes, id=name)
    if found is None:
        raise NotFoundError(f'there is no change request "{name}"; list those there are')
    return found


def load(connection: Connection, name: str) -> ChangeRequest:
    """Return a change request by its id. Raises NotFoundError."""
    return change(row_of(connection, name))


def authors(connection: Connection, name: str) -> frozenset[str]:
    """Return the users who drafted, edited or submitted a change request."""
    return frozenset(row_of(connection, name).authors)


def backtest(connection: Connection, name: str) -> dict[str, Any] | None:
    """Return the stored result of a change's backtest; None if there is none."""
    s = t.change_steps.c
    found = connection.scalar(select(s.data).where(s.change == name, s.name == BACKTEST))
    return dict(found) if found else None


def events(connection: Connection, name: str) -> tuple[ChangeEvent, ...]:
    """Return the events of a change request, oldest first."""
    e = t.change_events.c
    rows = connection.execute(select(t.change_events).where(e.change == name).order_by(e.id))
    return tuple(read(ChangeEvent, row) for row in rows)


def steps(connection: Connection, name: str) -> tuple[Step, ...]:
    """Return the steps of a change request that have begun, in order."""
    s = t.change_steps.c
    rows = connection.execute(select(t.change_steps).where(s.change == name).order_by(s.position, s.began))
    return tuple(read(Step, row) for row in rows)


# --- gates ---


def keep_gates(
    connection: Connection, name: str, phase: str, results: Sequence[GateResult], at: datetime
) -> None:
    """Replace the results of the latest evaluation of a phase."""
    g = t.gate_results.c
    connection.execute(delete(t.gate_results).where(g.change == name, g.phase == phase))
    for position, result in enumerate(results):
        values = {key: value for key, value in asdict(result).items() if key in t.gate_results.c}
        place = {"change": name, "phase": phase, "position": position, "at": at}
        connection.execute(insert(t.gate_results).values(**place, **values))


def gates(connection: Connection, name: str, phase: str | None = None) -> tuple[GateResult, ...]:
    """Return the results of the latest evaluation, with waivers.

    Args:
        connection: The database connection.
        name: Id of the change request.
        phase: The phase; None: the latest phase after the backtest.
    """
    g = t.gate_results.c
    if phase is None:
        query = (
            select(g.phase)
            .where(g.change == name, g.phase != BACKTEST)
            .order_by(g.at.desc(), g.phase.desc())
            .limit(1)
        )
        phase = connection.execute(query).scalar()
    rows = connection.execute(
        select(t.gate_results).where(g.change == name, g.phase == phase).order_by(g.position)
    )
    return waived(connection, name, [read(GateResult, row) for row in rows])


def waived(connection: Connection, name: str, results: Sequence[GateResult]) -> tuple[GateResult, ...]:
    """Return the results with the waivers of the change request."""
    rows = connection.execute(select(t.waivers).where(t.waivers.c.change == name)).all()
    by = {row.metric: row for row in rows}
    return tuple(
        replace(result, waived_by=by[result.metric].user, waived_why=by[result.metric].reason)
        if result.metric in by
        else result
        for result in results
    )


def verdict(results: Sequence[GateResult]) -> Outcome:
    """Return the verdict of some gate results. It is inconclusive if there are none."""
    blocking = [result for result in results if result.blocks]
    if any(result.outcome is Outcome.FAIL for result in blocking):
        return Outcome.FAIL
    if blocking or not any(not result.dry_run for result in results):
        return Outcome.INCONCLUSIVE
    return Outcome.PASS


def in_words(results: Sequence[GateResult], outcome: Outcome) -> str:
    """Return the gates that determine a verdict as text in brackets; empty if all gates have passed."""
    if outcome is Outcome.PASS:
        return ""
    said = [f"{each.metric}: {each.words}" for each in results if each.blocks and each.outcome is outcome]
    return f" ({'; '.join(said)})" if said else " (no gate has judged it)"


def in_state(connection: Connection, checkpoint: str, state: ChangeState) -> list[ChangeRequest]:
    """Return the change requests of a checkpoint in a state, oldest first."""
    c = t.changes.c
    found = connection.execute(
        select(t.changes).where(c.checkpoint == checkpoint, c.state == state.value).order_by(c.number)
    )
    return [change(row) for row in found]
