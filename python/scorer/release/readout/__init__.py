"""Read-outs: what the shadow showed, judged by gates, drawn and downloadable."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from scorer.release.model import Actor, ChangeRequest, GateResult, Outcome
from scorer.release.readout.types import Figure, Readout

__all__ = ["Figure", "Readout", "Readouts"]


class Readouts:
    """Collects observations from the logs of the fleet and makes read-outs of them."""

    def collect(self) -> None:
        """Takes in what the logs got since the last call; restartable. The platform's ticker calls it."""
        raise NotImplementedError

    def measure(self, change: ChangeRequest) -> int:
        """Observations of a change so far."""
        raise NotImplementedError

    def judge(self, change: ChangeRequest) -> tuple[GateResult, ...]:
        """Its gates by what is known now; the same again for the same observations."""
        raise NotImplementedError

    def judge_canary(self, change: ChangeRequest, since: datetime) -> tuple[GateResult, ...]:
        """The gates of a stage, by decisions of the canary's lane against the lane that was live before."""
        raise NotImplementedError

    def finish(self, change: ChangeRequest, gates: Sequence[GateResult], verdict: Outcome) -> None:
        """Keeps the final read-out, whole: pages show it from then on, whatever becomes of the logs."""
        raise NotImplementedError

    def readout(
        self,
        actor: Actor,
        change: str,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        server: str | None = None,
    ) -> Readout:
        """What there is so far, or the final one; by window and server on demand."""
        raise NotImplementedError

    def figure(self, actor: Actor, change: str, name: str) -> Figure:
        """One figure of it."""
        raise NotImplementedError
