"""Whether reports count each observation of the logs once, whatever was killed meanwhile.

The logs are read here record by record, apart from the way that the platform reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scorer.log import scan


def observations(logs: Mapping[str, Path], checkpoint: str) -> Counter[str]:
    """Return the number of observations in all logs, by lane."""
    found: Counter[str] = Counter()
    for log in logs.values():
        for entry in scan(log, kinds={"observation"}, checkpoint=checkpoint):
            found[entry.record.decision.lane] += 1
    return found


def check(reports: Mapping[str, Mapping[str, Any] | None], logged: Mapping[str, int]) -> list[str]:
    """Return every rule that is broken, in a sentence each.

    Args:
        reports: By change: the summary of its final report; None: it has none.
        logged: By change: observations in the logs.
    """
    problems = []
    for change, summary in sorted(reports.items()):
        expected = logged.get(change, 0)
        if summary is None:
            if expected:
                problems.append(f"{change}: the logs hold {expected} observations, and there is no report")
            continue
        counts, sources = summary["counts"], summary["sources"]
        if counts["observed"] != expected:
            problems.append(
                f"{change}: the report counts {counts['observed']} observations, the logs hold {expected}"
            )
        for name, one in {"all sources": counts, **sources}.items():
            parts = one["observed"] + one["dropped"] + one["shed"] + one["failed"]
            if one["taken"] != parts or min(one.values()) < 0:
                problems.append(f"{change}: {name}: {one['taken']} taken are not {parts}: {one}")
            if not one["taken"] <= one["eligible"] <= one["requests"]:
                problems.append(f"{change}: {name}: more were taken than came by: {one}")
        for kind, total in counts.items():
            if total != sum(one[kind] for one in sources.values()):
                problems.append(f"{change}: {kind} of all sources is not their sum: {counts}, {sources}")
    return problems
