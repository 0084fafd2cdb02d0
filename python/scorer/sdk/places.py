"""Checkpoints and the calendar of their shadows; single decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from scorer.release.model import Freeze, FreezeWindow, RecordedTable
from scorer.sdk.base import Operations
from scorer.sdk.results import CalendarPage, CheckpointView, Free, RolledBack


class PlaceCalls(Operations):
    """Its operations."""

    def checkpoints(self) -> list[CheckpointView]:
        """Every one that one may see, with its lanes as recorded and as every server says."""
        return self._call(list[CheckpointView], "GET", "/checkpoints")

    def checkpoint(self, name: str) -> CheckpointView:
        """One of them."""
        return self._call(CheckpointView, "GET", _at(name))

    def tables(self, checkpoint: str, *, limit: int = 100) -> list[RecordedTable]:
        """Its recorded lane tables, newest first."""
        return self._call(list[RecordedTable], "GET", f"{_at(checkpoint)}/tables", query={"limit": limit})

    def set_sampling(
        self,
        checkpoint: str,
        *,
        sample: float,
        filter: str = "",  # noqa: A002 - as lanes have it
        pool: bool | None = None,
    ) -> CheckpointView:
        """Owners: what the shadow is fed with from now on."""
        body = {"sample": float(sample), "filter": filter, "pool": pool}
        return self._call(CheckpointView, "PUT", f"{_at(checkpoint)}/sampling", json=body)

    def rollback_checkpoint(self, checkpoint: str, *, reason: str) -> RecordedTable:
        """One call, always: the answer lanes before these."""
        return self._call(RecordedTable, "POST", f"{_at(checkpoint)}/rollback", json={"reason": reason})

    def rolled_back_at(self, checkpoint: str) -> datetime | None:
        """When that was done last."""
        return self._call(RolledBack, "GET", f"{_at(checkpoint)}/rollback").at

    def next_free(self, checkpoint: str, *, minutes: float = 60.0, after: datetime | None = None) -> Free:
        """The earliest shadow slot that is free for so long, outside freezes."""
        query = {"minutes": minutes, "after": after}
        return self._call(Free, "GET", f"{_at(checkpoint)}/next-free", query=query)

    def frozen(self, checkpoint: str, at: datetime | None = None) -> FreezeWindow | None:
        """The window that forbids a change of what answers; None: allowed."""
        answer: Any = FreezeWindow | None
        found: FreezeWindow | None = self._call(answer, "GET", f"{_at(checkpoint)}/frozen", query={"at": at})
        return found

    def calendar(self, start: datetime, end: datetime, *, checkpoint: str | None = None) -> CalendarPage:
        """Everything between two moments: slots, bookings, freezes."""
        query = {"start": start, "end": end, "checkpoint": checkpoint}
        return self._call(CalendarPage, "GET", "/calendar", query=query)

    def freezes(self) -> list[Freeze]:
        """All of them."""
        return self._call(list[Freeze], "GET", "/freezes")

    def add_freeze(
        self,
        name: str,
        *,
        cron: str,
        minutes: int,
        kind: str = "deny",
        timezone: str = "UTC",
        checkpoints: Sequence[str] = ("*",),
        reason: str = "",
    ) -> Freeze:
        """Admins: when nothing may be changed (`deny`), or the only times when it may (`allow`)."""
        body = {
            "name": name,
            "kind": kind,
            "cron": cron,
            "timezone": timezone,
            "minutes": minutes,
            "checkpoints": list(checkpoints),
            "reason": reason,
        }
        return self._call(Freeze, "POST", "/freezes", json=body)

    def remove_freeze(self, freeze: int) -> None:
        """Admins."""
        self._send("DELETE", f"/freezes/{freeze}")

    def decisions(self, checkpoint: str, *, limit: int = 50) -> list[Mapping[str, Any]]:
        """The newest decisions of a checkpoint."""
        query = {"limit": limit}
        return self._call(list[Mapping[str, Any]], "GET", f"{_at(checkpoint)}/decisions", query=query)

    def decision(self, decision_id: str, *, checkpoint: str | None = None) -> Mapping[str, Any]:
        """One decision: features, what every shadow said, what became of it."""
        answer: Any = Mapping[str, Any]
        found: Mapping[str, Any] = self._call(
            answer, "GET", f"/decisions/{quote(decision_id, safe='')}", query={"checkpoint": checkpoint}
        )
        return found


def _at(checkpoint: str) -> str:
    return f"/checkpoints/{quote(checkpoint, safe='')}"
