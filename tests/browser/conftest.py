"""A real server with traffic, and a platform that manages it, for tests that drive pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import shop
from servers import RunningServer

from scorer.release.open import PlatformServices, open_service
from scorer.release.settings import PlatformFile


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]
) -> Iterator[RunningServer]:
    with shop.server(tmp_path_factory.mktemp("server"), built_bundles["score-1"]) as running:
        yield running


@pytest.fixture(scope="module")
def platform(server: RunningServer) -> Iterator[PlatformServices]:
    result = open_service(PlatformFile.parse(shop.platform_toml(server), base=server.directory))
    result.start()
    yield result
    result.close()


@pytest.fixture(scope="module")
def tokens(platform: PlatformServices) -> dict[str, str]:
    return shop.sign_up(platform.service.access)


@pytest.fixture(scope="module")
def traffic(server: RunningServer) -> Iterator[None]:
    """Send payments one after the other until the test session ends."""
    with shop.payments(server):
        yield
