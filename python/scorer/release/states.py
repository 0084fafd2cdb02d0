"""The state machine of a change request, as data: transitions, their actors and their effects.

All transitions go through `move`. A test compares this table with docs/changes.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scorer.release.errors import ConflictError
from scorer.release.model import ChangeKind, ChangeRequest, ChangeState

_S = ChangeState


class Who(StrEnum):
    """The actors that may make a transition."""

    AUTHOR = "author"
    """The user who drafted it, or an owner of the project."""
    APPROVER = "approver"
    """An approver who has not drafted, edited or submitted it."""
    MEMBER = "member"
    """Any modeler, approver or owner of the project."""
    PLATFORM = "platform"
    """The pipeline."""


class Effect(StrEnum):
    """Effects of a transition, which belong to its database transaction."""

    BOOK = "book"
    """Book a slot."""
    GIVE_BACK = "give back"
    """Release the rest of the booking."""
    OBSERVE = "observe"
    """Record a lane table with the observe lane of the change request."""
    UNOBSERVE = "unobserve"
    """Record a lane table without its observe lane."""
    ANSWER = "answer"
    """Record a lane table in which the bundle answers some or all requests."""
    RESTORE = "restore"
    """Record a lane table with the answer lanes before the release."""


@dataclass(frozen=True, slots=True)
class Move:
    """A permitted transition of a change request."""

    name: str
    source: ChangeState
    target: ChangeState
    who: Who
    effects: frozenset[Effect] = frozenset()
    kind: ChangeKind | None = None
    """Kind of change request that has this transition; None: every kind."""


def _moves() -> tuple[Move, ...]:
    def m(
        name: str,
        source: ChangeState,
        target: ChangeState,
        who: Who,
        *effects: Effect,
        kind: ChangeKind | None = None,
    ) -> Move:
        return Move(name, source, target, who, frozenset(effects), kind)

    run, test, release, overlay = Who.PLATFORM, ChangeKind.TEST, ChangeKind.RELEASE, ChangeKind.OVERLAY
    away = (Effect.GIVE_BACK, Effect.UNOBSERVE)
    moves = [
        m("submit", _S.DRAFT, _S.CHECKS, Who.AUTHOR, Effect.BOOK),
        m("checked", _S.CHECKS, _S.BOOKED, run),
        m("refused", _S.CHECKS, _S.REJECTED, run, *away),
        m("deploy", _S.BOOKED, _S.DEPLOYING, run, Effect.OBSERVE),
        m("refused", _S.DEPLOYING, _S.REJECTED, run, *away),
        m("deployed", _S.DEPLOYING, _S.OBSERVING, run),
        m("measured", _S.OBSERVING, _S.REPORT, run, *away),
        m("tested", _S.REPORT, _S.DONE, run, kind=test),
        m("failed", _S.REPORT, _S.REJECTED, run, kind=test),
        m("approve", _S.REPORT, _S.APPROVED, Who.APPROVER, kind=release),
        m("release", _S.APPROVED, _S.RELEASED, run, Effect.ANSWER, kind=release),
        m("completed", _S.RELEASED, _S.DONE, run, kind=release),
        m("gate failed", _S.RELEASED, _S.ROLLED_BACK, run, Effect.RESTORE, kind=release),
        m("changed outside", _S.RELEASED, _S.ROLLED_BACK, run, kind=release),
        m("rollback", _S.RELEASED, _S.ROLLED_BACK, Who.AUTHOR, Effect.RESTORE, kind=release),
        m("rollback", _S.DONE, _S.ROLLED_BACK, Who.AUTHOR, Effect.RESTORE, kind=release),
        m("permitted", _S.CHECKS, _S.APPROVED, run, kind=overlay),
        m("refused", _S.APPROVED, _S.REJECTED, run, kind=overlay),
        m("expire", _S.APPROVED, _S.EXPIRED, run, kind=overlay),
        m("release", _S.APPROVED, _S.RELEASED, run, Effect.ANSWER, kind=overlay),
        m("completed", _S.RELEASED, _S.DONE, run, kind=overlay),
        m("rollback", _S.RELEASED, _S.ROLLED_BACK, Who.AUTHOR, Effect.RESTORE, kind=overlay),
        m("rollback", _S.DONE, _S.ROLLED_BACK, Who.AUTHOR, Effect.RESTORE, kind=overlay),
    ]
    moves += [
        m("expire", source, _S.EXPIRED, run, *away)
        for source in (_S.CHECKS, _S.BOOKED, _S.DEPLOYING, _S.REPORT)
    ]
    before_release = (_S.CHECKS, _S.BOOKED, _S.DEPLOYING, _S.OBSERVING, _S.REPORT, _S.APPROVED)
    moves += [m("withdraw", s, _S.REJECTED, Who.AUTHOR, *away) for s in (_S.DRAFT, *before_release)]
    moves += [m("reject", s, _S.REJECTED, Who.APPROVER, *away) for s in before_release]
    return tuple(moves)


MOVES = _moves()

WITHIN: dict[str, tuple[Who, frozenset[ChangeState]]] = {
    "edit": (Who.AUTHOR, frozenset({_S.DRAFT})),
    "delete": (Who.AUTHOR, frozenset({_S.DRAFT})),
    "rebook": (Who.AUTHOR, frozenset({_S.CHECKS, _S.BOOKED})),
    "finish": (Who.AUTHOR, frozenset({_S.OBSERVING})),
    "waive": (Who.APPROVER, frozenset({_S.CHECKS, _S.BOOKED, _S.DEPLOYING, _S.OBSERVING, _S.REPORT})),
    "pause": (Who.AUTHOR, frozenset({_S.RELEASED})),
    "resume": (Who.AUTHOR, frozenset({_S.RELEASED})),
    "promote": (Who.APPROVER, frozenset({_S.RELEASED})),
    "skip": (Who.APPROVER, frozenset({_S.RELEASED})),
    "request_review": (Who.AUTHOR, frozenset(state for state in _S if not state.is_final)),
    "comment": (Who.MEMBER, frozenset(_S)),
    "archive": (Who.AUTHOR, frozenset(state for state in _S if state.is_final)),
    "unarchive": (Who.AUTHOR, frozenset(state for state in _S if state.is_final)),
}
"""Operations that do not change the state, with their actors and the states that allow them."""

CONTROLS = frozenset({"pause", "resume", "promote", "skip"})
"""Operations on the stages of a release, which `scorer.release.changes.control` performs."""

DISCUSSION = frozenset({"comment", "request_review", "archive", "unarchive"})
"""Operations of `scorer.release.changes.discussion`, which change nothing about a release."""

OBSERVED = frozenset({_S.DEPLOYING, _S.OBSERVING})
"""States in which a change request has an observe lane."""

OPEN = frozenset(state for state in _S if not state.is_final)
"""States that are not final. The runner advances them, except drafts, which wait for their author."""

_REMEDY = {
    _S.DRAFT: "submit it first",
    _S.DONE: "draft a new change request",
    _S.REJECTED: "draft a new change request",
    _S.EXPIRED: "draft a new change request",
    _S.ROLLED_BACK: "draft a new change request",
    _S.RELEASED: "roll it back, or wait until it is done",
}


def who(name: str) -> Who:
    """Return the actors of an operation."""
    if name in WITHIN:
        return WITHIN[name][0]
    return next(move.who for move in MOVES if move.name == name)


def allows(change: ChangeRequest, name: str) -> bool:
    """Whether the present state of a change request allows an operation, regardless of the actor."""
    if name in CONTROLS and change.kind is not ChangeKind.RELEASE:
        return False
    if name in WITHIN:
        return change.state in WITHIN[name][1]
    return _find(change, name) is not None


def move(change: ChangeRequest, name: str) -> Move:
    """Return the transition with a name from the present state of a change request.

    Raises:
        ConflictError: The state has no such transition. The error names the state and the remedy.
    """
    found = _find(change, name)
    if found is None:
        raise refusal(change, name)
    return found


def refusal(change: ChangeRequest, name: str) -> ConflictError:
    """Return the error for an operation that the present state does not allow."""
    sources = [move.source for move in MOVES if move.name == name and move.kind in (None, change.kind)]
    wanted = sorted(WITHIN[name][1] if name in WITHIN else sources, key=list(_S).index)
    if not wanted or (name in CONTROLS and change.kind is not ChangeKind.RELEASE):
        return ConflictError(f"{change.id} is a {change.kind}, which has no {name}; draft a RELEASE")
    remedy = _REMEDY.get(change.state, "its page lists the permitted operations")
    return ConflictError(
        f'{change.id} is "{change.state}", and {name} requires {", ".join(wanted)}; {remedy}'
    )


def _find(change: ChangeRequest, name: str) -> Move | None:
    for each in MOVES:
        if (each.name, each.source) == (name, change.state) and each.kind in (None, change.kind):
            return each
    return None
