"""Fixtures and settings shared by every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scorer.registry import Registry


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own SCORER_ variables must not change what a test sees."""
    for name in [name for name in os.environ if name.startswith("SCORER_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def built_bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny real bundles, built once: score-1, score-2, score-3, action-1, action-2."""
    from bundles import tiny_action_bundle, tiny_score_bundle

    directory = tmp_path_factory.mktemp("bundles")
    for variant in (1, 2, 3):
        tiny_score_bundle(directory / f"score-{variant}", variant=variant)
    for variant in (1, 2):
        tiny_action_bundle(directory / f"action-{variant}", variant=variant)
    return {path.name: path for path in directory.iterdir()}


@pytest.fixture
def registry(tmp_path: Path, built_bundles: dict[str, Path]) -> Registry:
    """A registry in ``tmp_path/registry`` where score-1 and action-1 are live, score-2 is stored."""
    made = Registry(tmp_path / "registry")
    made.alias("fraud-checkout", "live", made.push(built_bundles["score-1"]))
    made.alias("action-authorise", "live", made.push(built_bundles["action-1"]))
    made.push(built_bundles["score-2"])
    return made
