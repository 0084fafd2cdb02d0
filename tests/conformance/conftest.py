"""The real server that the conformance tools are run against."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import RunningServer, start_server

from scorer.registry import Registry


@pytest.fixture(scope="package")
def server(
    tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]
) -> Iterator[RunningServer]:
    """A server with one bundle at each checkpoint."""
    directory = tmp_path_factory.mktemp("conformance")
    registry = Registry(directory / "registry")
    registry.alias("fraud-checkout", "live", registry.push(built_bundles["score-1"]))
    registry.alias("action-authorise", "live", registry.push(built_bundles["action-1"]))
    with start_server(directory) as server:
        yield server
