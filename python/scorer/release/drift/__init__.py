"""Drift on the platform: the monitor of the fleet's records, its alerts and its figures."""

from __future__ import annotations

from scorer.release.drift.service import DriftWatch

__all__ = ["DriftWatch"]
