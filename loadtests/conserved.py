"""Whether reports count the observations of the logs, each once, whatever was killed meanwhile.

The logs are read here record by record, apart from the way that the platform reads them. A report is made at
a moment when the newest observations may not have been read. Of each source it must therefore count all that
its log holds up to some record: none in between is missing, and none is counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scorer.log import scan


@dataclass(frozen=True)
class ReportOfLane:
    """What the report of a change says.

    Attributes:
        summary: Of the report as a whole.
        rows: By server: observations in the report.
        newest: By server: time of the newest of them, microseconds since the Unix epoch.
    """

    summary: Mapping[str, Any]
    rows: Mapping[str, int] = field(default_factory=dict)
    newest: Mapping[str, int] = field(default_factory=dict)


Logged = Mapping[tuple[str, str], Mapping[str, int]]
"""By server and lane: the ids of the observed decisions, with the time of each, microseconds."""


def observations(logs: Mapping[str, Path], checkpoint: str) -> dict[tuple[str, str], dict[str, int]]:
    """Return what the logs hold."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for server, log in logs.items():
        for entry in scan(log, kinds={"observation"}, checkpoint=checkpoint):
            own = entry.record.decision
            # What a canary of the same change answered is not compared with it.
            if entry.record.live_lane != "canary":
                found.setdefault((server, own.lane), {})[own.decision_id] = entry.record.answered_at_us
    return found


def check(reports: Mapping[str, ReportOfLane | None], logged: Logged) -> list[str]:
    """Return every rule that is broken, in a sentence each.

    Args:
        reports: By change; None: it has none.
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
                    f"{change}: the report has {rows} observations of {server}, and its log {until} up to "
                    f"the newest of them, {len(times)} in all"
                )
        problems += [f"{change}: {what}" for what in _unbalanced(report.summary)]
    return problems


def _unbalanced(summary: Mapping[str, Any]) -> list[str]:
    counts, sources = summary["counts"], summary["sources"]
    problems = []
    for name, one in {"all sources": counts, **sources}.items():
        parts = one["observed"] + one["dropped"] + one["shed"] + one["failed"]
        if one["taken"] != parts or min(one.values()) < 0:
            problems.append(f"{name}: {one['taken']} taken are not {parts}: {one}")
        if not one["taken"] <= one["eligible"] <= one["requests"]:
            problems.append(f"{name}: more were taken than came by: {one}")
    for kind, total in counts.items():
        if total != sum(one[kind] for one in sources.values()):
            problems.append(f"{kind} of all sources is not their sum: {counts}, {sources}")
    return problems
