"""Metrics of checkpoints over time: rollups of the decision logs, and figures made of them."""

from __future__ import annotations

from scorer.release.timeseries.service import MetricsOverTime

__all__ = ["MetricsOverTime"]
