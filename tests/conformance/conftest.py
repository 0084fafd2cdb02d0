"""The real server that the conformance tools are run against."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import components
import pytest
from servers import RunningServer, settings, start_server

from scorer.registry import Registry


def fill_registry(directory: Path, bundles: dict[str, Path]) -> None:
    """Create a registry with one live bundle for each checkpoint."""
    registry = Registry(directory / "registry")
    registry.alias("fraud-checkout", "live", registry.push(bundles["score-1"]))
    registry.alias("action-authorise", "live", registry.push(bundles["action-1"]))


@pytest.fixture(scope="package")
def server(
    tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]
) -> Iterator[RunningServer]:
    """A server with one bundle at each checkpoint."""
    directory = tmp_path_factory.mktemp("conformance")
    fill_registry(directory, built_bundles)
    with start_server(directory) as server:
        yield server


@pytest.fixture
def tls_server(tmp_path: Path, built_bundles: dict[str, Path]) -> Iterator[RunningServer]:
    """The same server with TLS and a self-signed certificate."""
    openssl = components.require_program("openssl")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days",
         "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key,
         "-out", certificate],
        capture_output=True, check=True,
    )  # fmt: skip
    fill_registry(tmp_path, built_bundles)
    tls = f'\n[server.tls]\ncertificate = "{certificate}"\nkey = "{key}"\n'
    with start_server(tmp_path, settings() + tls) as server:
        yield server
