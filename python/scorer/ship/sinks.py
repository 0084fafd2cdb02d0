"""What the shipper requires of a sink."""

from __future__ import annotations

from typing import Protocol

from scorer.log.shipped.position import ShipPosition
from scorer.ship.batch import Batch


class Sink(Protocol):
    """A store that takes the records of a log together with its own position in that log.

    A method raises `SinkUnavailableError` if a later try may succeed; the shipper then calls `open` again and
    continues at the position that it returns. It raises `ShipError` if no try can succeed.
    """

    name: str
    """Label of the sink in metrics and messages."""
    commits: int
    """Number of commits so far."""

    def open(self) -> ShipPosition | None:
        """Connect, and return the position that the sink holds; None if nothing was shipped to it.

        It can be called again after an error of `deliver`.
        """

    def deliver(self, batch: Batch) -> None:
        """Store a batch and the position after it in one atomic step, or in steps that `open` can tell apart.

        After an error, the sink may hold the batch, a part that a repeated delivery completes, or nothing.
        """

    def upkeep(self) -> str:
        """Start or supervise maintenance that is due, without waiting for its end.

        Returns:
            A message for the operator if the maintenance has failed; otherwise empty.
        """

    def finish(self) -> str:
        """Do the maintenance that is due, and wait for its end. Returns what `upkeep` returns."""

    def close(self) -> None:
        """Release connections and child processes."""
