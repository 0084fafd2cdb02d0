"""What is recorded of lane tables and servers, read once for a pass over the fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from scorer.release.lanes import recorded
from scorer.release.store import Store
from scorer.release.store import tables as t
from scorer.release.store.rows import read, row_of

if TYPE_CHECKING:
    from scorer.release.fleet import Member, MemberStatus
    from scorer.release.model import RecordedTable


@dataclass(frozen=True, slots=True)
class Known:
    """Last known state of a checkpoint at a server, and the error of the last table that it rejected."""

    revision: int
    lane_table: int
    error: str = ""
    refused: int | None = None
    failures: int = 0
    retry_at: datetime | None = None


@dataclass(frozen=True)
class Snapshot:
    """The newest tables, and what was known of servers, before their statuses were read.

    It is older than the statuses, so it may only show that a server needs nothing. A decision to change a
    server is based on what is recorded after its status was read.

    Attributes:
        newest: The newest table of each checkpoint; None: none is recorded.
        states: What is known, by server and checkpoint.
    """

    newest: Mapping[str, RecordedTable | None]
    states: Mapping[tuple[str, str], Known] = field(default_factory=dict)

    def revision(self, checkpoint: str) -> int:
        """Return the revision of a checkpoint's newest table; 0: none is recorded."""
        newest = self.newest[checkpoint]
        return 0 if newest is None else newest.revision

    def with_states(self, store: Store, members: Sequence[Member]) -> Snapshot:
        """Return the snapshot with what is known of some servers."""
        m = t.member_lanes.c
        query = select(t.member_lanes).where(
            m.member.in_([member.name for member in members]), m.checkpoint.in_(list(self.newest))
        )
        with store.read() as connection:
            rows = connection.execute(query).all()
        return replace(self, states={(row.member, row.checkpoint): read(Known, row) for row in rows})

    def is_in_sync(self, member: Member, checkpoint: str, status: MemberStatus, platform: str) -> bool:
        """Whether a server has the newest table, and nothing about it needs to be recorded.

        Args:
            member: The server.
            checkpoint: Name of the checkpoint.
            status: Its status.
            platform: Name of the platform that has to manage the checkpoint.
        """
        newest = self.newest[checkpoint]
        if newest is None or not status.reachable:
            return False
        if self.states.get((member.name, checkpoint)) != Known(newest.revision, status.lane_table):
            return False
        mine = (status.checkpoints or {}).get(checkpoint)
        is_managed = member.role != "live" or (mine is not None and mine.managed_by == platform)
        return is_managed and recorded.has(newest, mine, member.role)


def newest_tables(store: Store, checkpoints: Sequence[str]) -> Snapshot:
    """Return the newest tables of checkpoints."""
    with store.read() as connection:
        return Snapshot({name: recorded.newest(connection, name) for name in checkpoints})


def known_of(connection: Connection, member: str, checkpoint: str) -> Known | None:
    """Return what is known of a checkpoint at a server; None: nothing."""
    row = row_of(connection, t.member_lanes, member=member, checkpoint=checkpoint)
    return None if row is None else read(Known, row)
