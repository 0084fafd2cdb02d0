"""The time of a bundle's evaluations and of the nodes of its program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from statistics import median
from typing import TYPE_CHECKING, Final

from scorer.errors import BundleError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LONGEST: Final = 600.0
"""Greatest length of a measurement in seconds."""


@dataclass(frozen=True, slots=True)
class NodeTime:
    """The times of one node.

    Attributes:
        mean_us: Mean time in microseconds; 0 if it was not measured.
        timed: Number of measured evaluations in which the node ran.
    """

    mean_us: float
    timed: int


@dataclass(frozen=True)
class MeasuredBundles:
    """The times of requests on one thread, each one row of every bundle with its rules.

    Attributes:
        nodes: For each bundle the times of its nodes in program order, by the slot that a node writes.
        plain_us: Microseconds of each request whose nodes were not measured, pass after pass over the rows.
        timed_us: The same of requests whose nodes were measured.
        requests: Number of requests of a pass.
    """

    nodes: Sequence[Mapping[str, NodeTime]]
    plain_us: Sequence[float]
    timed_us: Sequence[float]
    requests: int

    def ratios(self) -> list[float]:
        """Return, for each pass, the median time with measured nodes divided by that without."""
        passes = range(0, len(self.plain_us), self.requests)
        return [
            median(self.timed_us[at : at + self.requests]) / median(self.plain_us[at : at + self.requests])
            for at in passes
        ]


def measure(
    directories: Sequence[str | PathLike[str]],
    seconds: float = 1.0,
    *,
    rows: Sequence[npt.NDArray[np.float32]] | None = None,
) -> MeasuredBundles:
    """Measure the evaluations of bundles in Rust, on this thread.

    Passes over all rows with and without measured nodes take turns, the first of each only warms up.

    Args:
        directories: The directory of each bundle, which is verified.
        seconds: Length of the measurement; at least one pass is measured.
        rows: For each bundle rows in schema order ``[n, features]``, of which all actions are eligible.
            Default: the rows and eligible actions of its golden cases. A bundle with fewer rows repeats them.

    Raises:
        BundleError: A bundle, a row or the length is not valid.
    """
    from scorer import bridge

    if not 0.0 <= seconds <= LONGEST:
        raise BundleError(
            f"seconds: {seconds:g} is no length of a measurement; choose between 0 and {LONGEST:g}"
        )
    nodes, requests, plain, timed = bridge.measure_bundles(
        [fspath(one) for one in directories], seconds, rows
    )
    return MeasuredBundles(
        nodes=[{name: node_time(nanos, count) for name, _, nanos, count in one} for one in nodes],
        plain_us=[nanos / 1e3 for nanos in plain],
        timed_us=[nanos / 1e3 for nanos in timed],
        requests=requests,
    )


def node_time(nanos: int, timed: int) -> NodeTime:
    """Return the time of a node from a sum of nanoseconds over measured evaluations."""
    return NodeTime(nanos / timed / 1e3 if timed else 0.0, timed)


def total_times(servers: Iterable[Sequence[Mapping[str, object]]]) -> dict[str, NodeTime]:
    """Return the times of a bundle's nodes over several servers, by the slot that a node writes.

    Args:
        servers: For each server the nodes as its status states them (`NodeStatus` of control.proto).
    """
    sums: dict[str, tuple[int, int]] = {}
    for nodes in servers:
        for node in nodes:
            name, nanos, timed = str(node["name"]), int(str(node["nanos"])), int(str(node["timed"]))
            before = sums.get(name, (0, 0))
            sums[name] = (before[0] + nanos, before[1] + timed)
    return {name: node_time(*total) for name, total in sums.items()}
