"""Fixtures and settings shared by every test."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own SCORER_ variables must not change what a test sees."""
    for name in [name for name in os.environ if name.startswith("SCORER_")]:
        monkeypatch.delenv(name)
