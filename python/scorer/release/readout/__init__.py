"""Reports: what the shadow showed, judged by gates, drawn and downloadable."""

from __future__ import annotations

from scorer.release.answers import Figure, Readout
from scorer.release.readout.readouts import Readouts

__all__ = ["Figure", "Readout", "Readouts"]
