"""The state machine of a change request, as data: what may follow what, who does it, what comes with it.

Everything that moves a change looks here (`move`); a test holds docs/changes.md and this table together.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scorer.release.errors import ConflictError
from scorer.release.model import ChangeKind, ChangeRequest, ChangeState

_S = ChangeState


class Who(StrEnum):
    """The actors that may make a move."""

    AUTHOR = "author"
    """Whoever drafted it; with an owner's role, anybody."""
    APPROVER = "approver"
    """An approver who neither drafted, edited nor submitted it."""
    PLATFORM = "platform"
    """The pipeline."""


class Effect(StrEnum):
    """What comes with a move, in its transaction."""

    BOOK = "book"
    GIVE_BACK = "give back"
    """The rest of the booking."""
    OBSERVE = "observe"
    """A table with its shadow lane is recorded."""
    UNOBSERVE = "unobserve"
    """A table without it is recorded."""
    ANSWER = "answer"
    """A table in which it answers some or all is recorded."""
    RESTORE = "restore"
    """A table with the answer lanes from before it is recorded."""


@dataclass(frozen=True, slots=True)
class Move:
    """One way out of a state."""

    name: str
    source: ChangeState
    target: ChangeState
    who: Who
    effects: frozenset[Effect] = frozenset()
    kind: ChangeKind | None = None
    """Changes of this kind alone; None: of both."""


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
}
"""What is done to a change without moving it, by whom and where."""

OBSERVED = frozenset({_S.DEPLOYING, _S.OBSERVING})
"""Where a change has its lane in the shadow."""

OPEN = frozenset(state for state in _S if not state.is_final)
"""Those that the runner advances (a draft waits for its author)."""

_REMEDY = {
    _S.DRAFT: "submit it first",
    _S.DONE: "draft a new change request",
    _S.REJECTED: "draft a new change request",
    _S.EXPIRED: "draft a new change request",
    _S.ROLLED_BACK: "draft a new change request",
    _S.RELEASED: "roll it back, or wait until it is done",
}


def allows(change: ChangeRequest, name: str) -> bool:
    """Whether this may be done to a change in its state, whoever does it."""
    if name in WITHIN:
        return change.state in WITHIN[name][1]
    return _find(change, name) is not None


def move(change: ChangeRequest, name: str) -> Move:
    """The move of that name from where the change is.

    Raises:
        ConflictError: there is none; it says where the change is and what to do.
    """
    found = _find(change, name)
    if found is None:
        raise refusal(change, name)
    return found


def refusal(change: ChangeRequest, name: str) -> ConflictError:
    """Why this cannot be done now."""
    sources = [move.source for move in MOVES if move.name == name and move.kind in (None, change.kind)]
    wanted = sorted(WITHIN[name][1] if name in WITHIN else sources, key=list(_S).index)
    if not wanted:
        return ConflictError(f"{change.id} is a {change.kind}: there is no {name} of it; draft a RELEASE")
    remedy = _REMEDY.get(change.state, "look at its page for what can be done now")
    return ConflictError(f'{change.id} is "{change.state}": {name} is for {", ".join(wanted)}; {remedy}')


def _find(change: ChangeRequest, name: str) -> Move | None:
    for each in MOVES:
        if (each.name, each.source) == (name, change.state) and each.kind in (None, change.kind):
            return each
    return None
