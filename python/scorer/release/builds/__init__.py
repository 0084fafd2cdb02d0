"""Bundles from model files: the service, and the process that reads the files."""

from __future__ import annotations

from scorer.release.builds.operations import Builds

__all__ = ["Builds"]
