"""The recorded bundles that were made by editing the rules of another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import select

from scorer.release.model import ChangeState
from scorer.release.rule_answers import RuleRevision
from scorer.release.store import tables as t
from scorer.release.store.rows import read, row_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

_ENDED: Final = (ChangeState.REJECTED, ChangeState.EXPIRED, ChangeState.ROLLED_BACK)
"""States of change requests whose bundle does not replace the one that it was made from."""


def saved_cases(connection: Connection, project: str, digest: str) -> str:
    """Return the author's cases that were saved with a bundle, as TOML; empty if there are none."""
    row = row_of(connection, t.rule_revisions, project=project, digest=digest)
    return "" if row is None else str(row.cases)


def revision_of(connection: Connection, project: str, digest: str) -> RuleRevision | None:
    """Return how a bundle of a project was made; None if not by editing rules."""
    row = row_of(connection, t.rule_revisions, project=project, digest=digest)
    return None if row is None else read(RuleRevision, row)


def newest_of(connection: Connection, project: str, base: str, checkpoint: str = "") -> RuleRevision | None:
    """Return the newest bundle that was made from another one and can still replace it; None: there is none.

    Args:
        connection: A connection.
        project: Name of the project.
        base: Digest of the bundle whose rules were edited.
        checkpoint: Name of the checkpoint; empty: any.
    """
    r, c = t.rule_revisions.c, t.changes.c
    query = (
        select(t.rule_revisions)
        .join(t.changes, c.id == r.change)
        .where(r.project == project, r.base == base, c.state.not_in(_ENDED))
        .order_by(r.at.desc(), r.digest)
        .limit(1)
    )
    if checkpoint:
        query = query.where(r.checkpoint == checkpoint)
    row = connection.execute(query).one_or_none()
    return None if row is None else read(RuleRevision, row)
