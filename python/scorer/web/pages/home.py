"""The overview: the health of each checkpoint, and what needs an action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.answers import CheckpointView
from scorer.release.errors import NotFoundError, PlatformError
from scorer.release.model import Booking, ChangeKind, ChangeRequest, ChangeState, FreezeWindow, Outcome, Role
from scorer.web.pages.traffic import ROWS, Traffic, traffic
from scorer.web.pages.visit import Here, Visit

router = APIRouter()


@dataclass(frozen=True)
class Tile:
    """Summary of one checkpoint on the overview."""

    view: CheckpointView
    traffic: Traffic
    freeze: FreezeWindow | None
    warnings: tuple[str, ...]

    @property
    def in_sync(self) -> int:
        """Number of servers that respond and are in sync."""
        return sum(member.reachable and member.in_step for member in self.view.members)

    @property
    def attention(self) -> bool:
        """Whether the checkpoint needs attention."""
        return bool(self.warnings) or self.slow

    @property
    def slow(self) -> bool:
        """Whether the p99 of the newest decisions exceeds the SLA."""
        return self.traffic.p99_us is not None and self.traffic.p99_us > self.view.p99_ms * 1000


@router.get("/")
def home(here: Here) -> Response:
    """Show the overview of the platform."""
    tiles = [_tile(here, view) for view in here.service.checkpoints.list(here.actor)]
    changes = here.service.changes.list(here.actor, limit=200)
    under_way = [one for one in changes if not one.state.is_final]
    page = here.service.calendar.page(here.actor, here.now, here.now + timedelta(days=7))
    return here.page(
        "home.html",
        tiles=tiles,
        visible=here.checkpoints(),
        freezes=[(tile.view.name, tile.freeze) for tile in tiles if tile.freeze],
        waiting=[one for one in under_way if _waits_for(here, one)],
        under_way=under_way,
        bookings=_next(page.bookings, here),
        newest=[one for one in changes if one.state.is_final][:5],
    )


def _tile(here: Visit, view: CheckpointView) -> Tile:
    warnings = []
    away = [member.name for member in view.members if not member.reachable]
    astray = [member.name for member in view.members if member.reachable and not member.in_step]
    if away:
        warnings.append(f"{', '.join(away)} not reachable")
    if astray:
        warnings.append(f"{', '.join(astray)} out of sync with the recorded lanes")
    for member in view.members:
        stuck = [str(one.get("lane")) for one in member.observers if one.get("stuck")]
        if stuck:
            warnings.append(f"observe lane {', '.join(stuck)} stuck at {member.name}")
    try:
        rows = here.service.decisions.recent(here.actor, view.name, limit=ROWS)
    except NotFoundError:
        rows = ()  # the checkpoint belongs to no project of the visitor
    except PlatformError as error:
        rows = ()
        warnings.append(str(error))
    return Tile(
        view, traffic(rows, here.now), here.service.calendar.frozen(view.name, here.now), tuple(warnings)
    )


def _waits_for(here: Visit, change: ChangeRequest) -> bool:
    """Whether a change request needs an action of the visitor."""
    own = here.actor.user in (change.created_by, change.submitted_by)
    if change.state is ChangeState.DRAFT:
        return change.created_by == here.actor.user
    approvable = (
        change.state is ChangeState.REPORT
        and change.kind is ChangeKind.RELEASE
        and change.verdict is Outcome.PASS
        and here.is_at_least(Role.APPROVER, change.project)
    )
    return not own and (approvable or here.actor.user in change.reviewers)


def _next(bookings: Sequence[Booking], here: Visit) -> list[Booking]:
    ahead = [one for one in bookings if one.active and one.end > here.now]
    return sorted(ahead, key=lambda one: one.start)[:6]
