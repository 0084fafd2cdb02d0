"""Reasons that reviewers can give: those that a project has declared, or the standard ones."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert, select

from scorer.release.errors import InvalidError
from scorer.release.model import CaseDecision, CaseReason
from scorer.release.store import tables as t
from scorer.release.store.rows import read

STANDARD = (
    CaseReason("confirmed_fraud", "Confirmed fraud", CaseDecision.DECLINE),
    CaseReason("suspected_fraud", "Suspected fraud", CaseDecision.DECLINE),
    CaseReason("customer_verified", "The customer confirmed the payment", CaseDecision.APPROVE),
    CaseReason("known_customer", "Known customer with a good history", CaseDecision.APPROVE),
    CaseReason("other", "Another reason, which the notes give"),
)
"""Reasons of a project that has declared none."""


def reasons_of(connection: Connection, project: str) -> tuple[CaseReason, ...]:
    """Return the reasons of a project, in the order in which they are shown."""
    r = t.review_reasons.c
    rows = connection.execute(select(t.review_reasons).where(r.project == project).order_by(r.position))
    return tuple(read(CaseReason, row) for row in rows) or STANDARD


def replace_reasons(connection: Connection, project: str, reasons: Sequence[CaseReason]) -> None:
    """Replace the reasons of a project. Decided cases keep the codes of theirs.

    Raises:
        InvalidError: A code is given twice, or a decision would have no reason.
    """
    codes = [one.code for one in reasons]
    if twice := sorted({code for code in codes if codes.count(code) > 1}):
        raise InvalidError(f'reasons: the code "{twice[0]}" is given twice; give each reason its own')
    for decision in CaseDecision:
        if reasons and all(one.decision not in (None, decision) for one in reasons):
            raise InvalidError(f"reasons: there is none for {decision}; add one, or leave its decision out")
    connection.execute(delete(t.review_reasons).where(t.review_reasons.c.project == project))
    for position, one in enumerate(reasons):
        connection.execute(
            insert(t.review_reasons).values(
                project=project,
                code=one.code,
                position=position,
                text=one.text,
                decision=one.decision,
            )
        )


def check_reason(reasons: Sequence[CaseReason], code: str, decision: CaseDecision, notes: str) -> None:
    """Check that a reason can be given for a decision.

    Raises:
        InvalidError: The project has no such reason for the decision, or `other` has no notes.
    """
    fitting = [one.code for one in reasons if one.decision in (None, decision)]
    if code not in fitting:
        raise InvalidError(
            f'reason "{code[:100]}": it is not a reason of the project for {decision}; use one of '
            f"{', '.join(fitting)}"
        )
    if code == "other" and not notes:
        raise InvalidError('reason "other": the notes are empty; describe the reason in them')
