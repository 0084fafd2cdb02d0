"""Tests of ``scorer health`` with grpcio's real health service, and of the settings that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health as servicer
from grpc_health.v1 import health_pb2, health_pb2_grpc
from typer.testing import CliRunner

from scorer import config
from scorer.cli import app
from scorer.commands.health import check, target_of
from scorer.errors import ConfigError, ServerError

Status = health_pb2.HealthCheckResponse.ServingStatus


@pytest.fixture
def served() -> Iterator[tuple[str, servicer.HealthServicer]]:
    server = grpc.server(ThreadPoolExecutor(2))
    health = servicer.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", health
    server.stop(None).wait()


@pytest.mark.parametrize("status", Status.keys())
def test_every_status_is_printed_by_its_name(
    served: tuple[str, servicer.HealthServicer], status: str
) -> None:
    target, health = served
    health.set("", Status.Value(status))
    health.set("fraud.checkout", Status.SERVING)
    assert check(target) == status
    assert check(target, "fraud.checkout") == "SERVING"
    result = CliRunner().invoke(app, ["health", target])
    assert result.output == f"{target}: {status}\n"
    assert result.exit_code == (0 if status == "SERVING" else 1)


def test_an_unknown_service_and_an_unreachable_server_are_errors(
    served: tuple[str, servicer.HealthServicer], tmp_path: Path
) -> None:
    target, _ = served
    with pytest.raises(ServerError, match=target):
        check(target, "no.such")
    with pytest.raises(ServerError, match="128 bytes"):
        check(target, "x" * 128)
    with pytest.raises(ServerError, match=r"no response within 0\.2 s"):
        check(f"unix://{tmp_path}/nobody.sock", timeout=0.2)


@pytest.mark.parametrize(
    ("listen", "uds", "target"),
    [
        ("127.0.0.1:7700", None, "127.0.0.1:7700"),
        ("0.0.0.0:7700", None, "127.0.0.1:7700"),
        ("[::]:7700", None, "[::1]:7700"),
        ("0.0.0.0:7700", "/run/scorer/scorer.sock", "unix:///run/scorer/scorer.sock"),
        ("off", "/run/scorer/scorer.sock", "unix:///run/scorer/scorer.sock"),
    ],
)
def test_the_command_uses_the_address_of_the_settings(listen: str, uds: str | None, target: str) -> None:
    assert target_of(_settings(listen, uds).server) == target


def test_settings_without_an_address_are_an_error() -> None:
    with pytest.raises(ConfigError, match="port 0"):
        target_of(_settings("127.0.0.1:0", None).server)
    assert isinstance(CliRunner().invoke(app, ["health"]).exception, ConfigError)


def _settings(listen: str, uds: str | None) -> config.Settings:
    socket = f'uds = "{uds}"' if uds else ""
    return config.parse(
        f"""
        [server]
        allow_remote = true
        listen = "{listen}"
        {socket}
        [checkpoints."fraud.checkout"]
        kind = "score"
        alias = "fraud@live"
        """,
        environment={},
    )
