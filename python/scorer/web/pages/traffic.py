"""Rate, latency and results of a checkpoint, from its newest decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

ROWS = 500
IDLE_SECONDS = 60.0


def length(seconds: float) -> str:
    """Format a duration in days, hours, minutes or seconds."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "under 1 s"


@dataclass(frozen=True)
class Traffic:
    """Figures of a checkpoint's newest decisions."""

    rows: int
    per_second: float | None
    p99_us: float | None
    declined: float | None
    """Share of decisions with the label "decline"; None for actions."""
    fallbacks: float
    newest: datetime | None
    line: tuple[float, ...]
    """Longest time in each of up to 40 equal parts, in microseconds, oldest first."""
    oldest: datetime | None = None

    def window(self, now: datetime) -> str:
        """Describe the number of decisions and the time span of the figures."""
        if self.newest is None or self.oldest is None:
            return "No decisions yet."
        span = f"Newest {self.rows:,} decisions, {length((self.newest - self.oldest).total_seconds())}"
        idle = (now - self.newest).total_seconds()
        return f"{span}; none for {length(idle)}." if idle > IDLE_SECONDS else f"{span}."


def moment(value: Any) -> datetime | None:
    """Convert a decision's time, which is aware, text or microseconds."""
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, str):
        try:
            return moment(datetime.fromisoformat(value))
        except ValueError:
            return None
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value / 1e6, UTC)
    return None


def decided_at(row: Mapping[str, Any]) -> datetime | None:
    """Return the time of a decision."""
    return moment(row.get("decided_at", row.get("decided_at_us")))


def traffic(rows: Sequence[Mapping[str, Any]], now: datetime) -> Traffic:
    """Compute the figures of decisions, which may be in any order."""
    timed = sorted(
        ((at, row) for row in rows if (at := decided_at(row)) is not None), key=lambda pair: pair[0]
    )
    if not timed:
        return Traffic(0, None, None, None, 0.0, None, ())
    spans = [float(row.get("exec_us") or 0) + float(row.get("data_load_us") or 0) for _, row in timed]
    told = [row["decision"] for _, row in timed if row.get("decision")]
    # After a minute without decisions, the rate is 0 instead of an average with earlier traffic.
    idle = (now - timed[-1][0]).total_seconds() > IDLE_SECONDS
    seconds = max((now - timed[0][0]).total_seconds(), 1e-3)
    part = max(1, len(spans) // 40)
    return Traffic(
        rows=len(timed),
        per_second=0.0 if idle else len(timed) / seconds,
        p99_us=sorted(spans)[min(len(spans) - 1, int(0.99 * len(spans)))],
        declined=sum(one == "decline" for one in told) / len(told) if told else None,
        fallbacks=sum(bool(row.get("fallback_source")) for _, row in timed) / len(timed),
        newest=timed[-1][0],
        oldest=timed[0][0],
        line=tuple(max(spans[at : at + part]) for at in range(0, len(spans), part)),
    )
