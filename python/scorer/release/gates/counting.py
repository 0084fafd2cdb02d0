"""Counts of the requests that an observe lane took, by their result.

For each source, `taken = observed + dropped + shed + failed` holds exactly:

    taken      requests that the lane took at live servers
    observed   of these, observations that were read from a log, with or without a score
    dropped    of these, requests that were dropped because the lane's queue was full
    shed       of these, requests that were dropped because the server or the pool was overloaded
    failed     all others: lost with a server or the pool, not logged, or still in progress

If a lane is evaluated at the live servers, each live server is a source. If it is evaluated in the shadow
pool, all live servers and the pool together are one source, because a live server takes a request and the
pool observes it. Counters restart with their server, and the counts after the last reading are then lost.
`taken` is therefore at least the sum of the other numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from scorer.release.gates.evidence import Counter, ShadowEvidence

POOL: Final = "shadow pool"
"""Name of the source that consists of the pool and its live servers."""
KINDS: Final = ("taken", "dropped", "shed", "failed", "unlogged")
"""Counters of servers; their `failed` are evaluations that ended without a score."""
_ALL: Final = ("seen", "left_out", "evaluated", *KINDS)


@dataclass(frozen=True, slots=True)
class Account:
    """Counts of the requests of a source, or of all sources; see the module.

    Attributes:
        requests: Requests of the checkpoint while the lane was active.
        eligible: Of these, requests that the lane's filter and sample selected.
    """

    requests: int = 0
    eligible: int = 0
    taken: int = 0
    observed: int = 0
    dropped: int = 0
    shed: int = 0
    failed: int = 0

    def __add__(self, other: Account) -> Account:
        return Account(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    def as_dict(self) -> dict[str, int]:
        """Return the numbers by name."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @property
    def not_observed(self) -> int:
        """Number of requests that were taken and not observed, for any reason."""
        return self.dropped + self.shed + self.failed


def observations(evidence: ShadowEvidence) -> dict[str, int]:
    """Return the number of observations that were read, by server. A thinned sample has fewer rows."""
    if evidence.read is not None:
        return dict(evidence.read)
    counts = np.bincount(evidence.shadow.server, minlength=1)
    names = evidence.shadow.servers()
    return {names[code]: int(count) for code, count in enumerate(counts) if count}


def account(counters: Sequence[Counter], observed: Mapping[str, int]) -> Account:
    """Return the counts of all requests.

    Args:
        counters: Readings of the lane's counters at every server.
        observed: Number of observations that were read, by the server of the log.
    """
    return sum(by_source(counters, observed).values(), Account())


def by_source(counters: Sequence[Counter], observed: Mapping[str, int]) -> dict[str, Account]:
    """Return the counts of the requests of each source.

    Args:
        counters: Readings of the lane at every server.
        observed: Observations that were read, by the server whose log they are of.
    """
    counted = _by_server(counters)
    servers = {*counted, *(name for name, rows in observed.items() if rows)}
    # A pool observes requests, but only its live servers take them.
    nothing = dict.fromkeys(_ALL, 0)
    pooled = any(
        not counted.get(name, nothing)["taken"]
        and (observed.get(name, 0) or counted.get(name, nothing)["evaluated"])
        for name in servers
    )
    groups = {POOL: servers} if pooled and len(servers) > 1 else {name: {name} for name in servers}
    return {
        name: _balanced(
            {kind: sum(counted.get(one, nothing)[kind] for one in group) for kind in _ALL},
            sum(observed.get(one, 0) for one in group),
        )
        for name, group in sorted(groups.items())
    }


def _balanced(counted: Mapping[str, int], observed: int) -> Account:
    dropped, shed = counted["dropped"], counted["shed"]
    taken = max(counted["taken"], observed + dropped + shed)
    eligible = max(counted["seen"] - counted["left_out"], taken)
    return Account(
        requests=max(counted["seen"], eligible),
        eligible=eligible,
        taken=taken,
        observed=observed,
        dropped=dropped,
        shed=shed,
        failed=taken - observed - dropped - shed,
    )


def totals(counters: Sequence[Counter]) -> dict[str, int]:
    """Return the total counts: the sum of all increases, because counters restart with their lane."""
    servers = _by_server(counters).values()
    return {kind: sum(own[kind] for own in servers) for kind in _ALL}


def _by_server(counters: Sequence[Counter]) -> dict[str, dict[str, int]]:
    counted: dict[str, dict[str, int]] = {}
    for step in increases(counters):
        own = counted.setdefault(step["server"], dict.fromkeys(_ALL, 0))
        for kind in _ALL:
            own[kind] += step[kind]
    return counted


def increases(counters: Sequence[Counter]) -> list[dict[str, Any]]:
    """Return the increase of each counter of each server from one reading to the next."""
    found = []
    last: dict[tuple[str, str], Counter] = {}
    for one in sorted(counters, key=lambda c: c.at):
        before = last.get((one.server, one.lane))
        # A lower value than before means that the lane or its server was restarted.
        fresh = before is None or any(
            getattr(one, kind) < getattr(before, kind) for kind in ("seen", "taken", "evaluated")
        )
        step: dict[str, Any] = {"at": one.at, "server": one.server}
        for kind in _ALL:
            now = getattr(one, kind)
            step[kind] = now if fresh or before is None else max(now - getattr(before, kind), 0)
        found.append(step)
        last[one.server, one.lane] = one
    return found
