"""Print observe lanes and the shadow pool of a server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from scorer.commands.output import print_table

if TYPE_CHECKING:
    from scorer.v1 import control_pb2 as pb


def print_observer_status(observers: Iterable[pb.ObserverStatus]) -> None:
    """Print the counters of observe lanes, if there are any."""
    rows = [
        (
            one.checkpoint,
            one.lane,
            _state(one),
            str(one.taken),
            str(one.evaluated),
            _lost(one),
            f"{one.exec_p50_us:.0f} / {one.exec_p99_us:.0f} / {one.exec_p999_us:.0f}",
            f"{one.cpu_seconds:.1f} s",
        )
        for one in observers
    ]
    if rows:
        columns = ("checkpoint", "observes", "state", "taken", "evaluated", "lost", "p50/p99/p99.9 µs", "CPU")
        print_table(columns, rows, empty="")


def print_pool(role: str, pool: pb.PoolStatus | None) -> None:
    """Print the server's connection to the shadow pool, if it has one."""
    if role == "shadow":
        typer.echo("  shadow pool: evaluates requests that live servers send, and returns no response")
    if pool is not None:
        state = "connected" if pool.connected else f"NOT connected{f': {pool.error}' if pool.error else ''}"
        typer.echo(
            f"  shadow pool {pool.address}: {state}; {pool.sent} sent, {pool.dropped} dropped here, "
            f"{pool.accepted} accepted and {pool.refused} dropped there"
        )


def _state(one: pb.ObserverStatus) -> str:
    if one.stuck:
        return "STUCK"
    if one.pool:
        return "in the pool"
    return f"{one.waiting} waiting" if one.waiting else "idle"


def _lost(one: pb.ObserverStatus) -> str:
    """Format the number of requests that were taken and have no score in the log, by reason."""
    counts = {"dropped": one.dropped, "shed": one.shed, "unlogged": one.unlogged, **one.failed}
    return ", ".join(f"{count} {why}" for why, count in counts.items() if count) or "-"
