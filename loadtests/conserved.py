"""Check that reports count each observation of the logs exactly once, also after processes were killed.

This module reads the logs record by record, independent of the platform's reader. A report may be computed
before the newest observations are read. Therefore it must count, for each source, all observations in its log
up to some record: none before it is missing, and none is counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scorer.log import scan


@dataclass(frozen=True)
class ReportOfLane:
    """Counts in the report of a change request.

    Attributes:
        summary: Summary of the report.
        rows: Number of observations in the report, by server.
        newest: Time of the newest of them by server, in microseconds since the Unix epoch.
    """

    summary: Mapping[str, Any]
    rows: Mapping[str, int] = field(default_factory=dict)
    newest: Mapping[str, int] = field(default_factory=dict)


Logged = Mapping[tuple[str, str], Mapping[str, int]]
"""By server and lane: the time of each observed decision by its id, in microseconds since the Unix epoch."""


def observations(logs: Mapping[str, Path], checkpoint: str) -> dict[tuple[str, str], dict[str, int]]:
    """Return the observations in the logs."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for server, log in logs.items():
        for entry in scan(log, kinds={"observation"}, checkpoint=checkpoint):
            own = entry.record.decision
            # Answers of a canary of the same change are not compared with it.
            if entry.record.live_lane != "canary":
                found.setdefault((server, own.lane), {})[own.decision_id] = entry.record.answered_at_us
    return found


def check(reports: Mapping[str, ReportOfLane | None], logged: Logged) -> list[str]:
    """Return a sentence for each violated rule.

    Args:
        reports: Reports by change request; None: it has none.
        logged: Observations in the logs.
    """
    problems = []
    for change, report in sorted(reports.items()):
        own = {server: times for (server, lane), times in logged.items() if lane == change}
        if report is None:
            continue
        for server, rows in report.rows.items():
            times = own.get(server, {}).values()
            until = sum(at <= report.newest[server] for at in times)
            if rows != until:
                problems.append(
                    f"{change}: the report has {rows} observations of {server}, but its log has {until} "
                    f"up to the newest of them, {len(times)} in total"
                )
        problems += [f"{change}: {what}" for what in _unbalanced(report.summary)]
    return problems


def _unbalanced(summary: Mapping[str, Any]) -> list[str]:
    counts, sources = summary["counts"], summary["sources"]
    problems = []
    for name, one in {"all sources": counts, **sources}.items():
        parts = one["observed"] + one["dropped"] + one["shed"] + one["failed"]
        if one["taken"] != parts or min(one.values()) < 0:
            problems.append(f"{name}: {one['taken']} taken, but {parts} accounted for: {one}")
        if not one["taken"] <= one["eligible"] <= one["requests"]:
            problems.append(f"{name}: more requests taken than eligible or received: {one}")
    for kind, total in counts.items():
        if total != sum(one[kind] for one in sources.values()):
            problems.append(f"{kind} of all sources differs from their sum: {counts}, {sources}")
    return problems
