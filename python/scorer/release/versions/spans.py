"""The times at which each bundle was in the lanes of a checkpoint, from the recorded lane tables."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from scorer.release.lanes.recorded import CANARY, CONTROL, HOLDOUT
from scorer.release.model import LaneSpec, Place
from scorer.release.store import tables as t

if TYPE_CHECKING:
    from collections.abc import Mapping

_ORDER = (Place.LIVE, Place.CANARY, Place.HOLDOUT, Place.SHADOW)
_PORTION = 1000


@dataclass(frozen=True, slots=True)
class Span:
    """The history of one bundle at one checkpoint."""

    first_at: datetime
    answered: bool = False
    since: datetime | None = None
    until: datetime | None = None
    seconds: float = 0.0
    """Time as the live bundle in seconds, without the span that has not ended."""

    def live_seconds(self, now: datetime) -> float:
        """Return the time as the live bundle in seconds, including the present span."""
        is_live = self.since is not None and self.until is None
        return self.seconds + (max((now - self.since).total_seconds(), 0.0) if is_live and self.since else 0)


@dataclass
class _State:
    revision: int = 0
    spans: dict[str, Span] = field(default_factory=dict)
    live: frozenset[str] = frozenset()
    answer: Sequence[LaneSpec] = ()
    observe: Sequence[LaneSpec] = ()


@dataclass(frozen=True, slots=True)
class Lanes:
    """The bundles of a checkpoint's lanes, past and present."""

    spans: Mapping[str, Span]
    """By digest; bundles that no lane ever held are absent."""
    places: Mapping[str, Place]
    """By digest, of the bundles that are in a lane now."""
    shares: Mapping[str, float]
    """By digest: share of the answers now."""


class Spans:
    """Follows the lane tables of checkpoints. Tables are never altered, so each is read once."""

    def __init__(self) -> None:
        self._states: dict[str, _State] = {}
        self._lock = threading.Lock()

    def of(self, connection: Connection, checkpoint: str) -> Lanes:
        """Return the history of every bundle at a checkpoint, up to its newest lane table."""
        r = t.recorded_tables.c
        with self._lock:
            state = self._states.setdefault(checkpoint, _State())
            while True:
                rows = connection.execute(
                    select(r.revision, r.at, r.answer, r.observe)
                    .where(r.checkpoint == checkpoint, r.revision > state.revision)
                    .order_by(r.revision)
                    .limit(_PORTION)
                ).all()
                for row in rows:
                    _follow(state, row.at, row.answer, row.observe)
                    state.revision = row.revision
                if len(rows) < _PORTION:
                    break
            return Lanes(dict(state.spans), places(state.answer, state.observe), _shares(state.answer))


def places(answer: Sequence[LaneSpec], observe: Sequence[LaneSpec]) -> dict[str, Place]:
    """Return where the bundles of a lane table are. The first of live, canary, holdout, shadow counts."""
    found: dict[str, Place] = {}
    named = [
        ({CANARY: Place.CANARY, HOLDOUT: Place.HOLDOUT}.get(one.name, Place.LIVE), one) for one in answer
    ]
    named += [(Place.SHADOW, one) for one in observe if one.name != CONTROL]
    for place, lane in sorted(named, key=lambda each: _ORDER.index(each[0])):
        found.setdefault(lane.bundle, place)
    return found


def _shares(answer: Sequence[LaneSpec]) -> dict[str, float]:
    found: dict[str, float] = {}
    for lane in answer:
        found[lane.bundle] = found.get(lane.bundle, 0.0) + lane.share
    return found


def _follow(state: _State, at: datetime, answer: Sequence[LaneSpec], observe: Sequence[LaneSpec]) -> None:
    now = places(answer, observe)
    live = frozenset(digest for digest, place in now.items() if place is Place.LIVE)
    for digest, place in now.items():
        span = state.spans.get(digest, Span(at))
        span = replace(span, answered=span.answered or place is not Place.SHADOW)
        if digest in live and digest not in state.live:
            span = replace(span, since=at, until=None)
        state.spans[digest] = span
    for digest in state.live - live:
        span = state.spans[digest]
        lasted = (at - span.since).total_seconds() if span.since else 0.0
        state.spans[digest] = replace(span, until=at, seconds=span.seconds + max(lasted, 0.0))
    state.live, state.answer, state.observe = live, answer, observe
