"""Reports of change requests: figures and gates of the observations, for display and download."""

from __future__ import annotations

from scorer.figure import Figure
from scorer.release.answers import Readout
from scorer.release.readout.readouts import Readouts

__all__ = ["Figure", "Readout", "Readouts"]
