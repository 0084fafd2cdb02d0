"""Read-outs: what the shadow showed, judged by gates, drawn and downloadable."""

from __future__ import annotations

from scorer.release.readout.readouts import Readouts
from scorer.release.readout.types import Figure, Readout

__all__ = ["Figure", "Readout", "Readouts"]
