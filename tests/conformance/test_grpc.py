"""The real server as other people's gRPC programs use it: grpcurl, ghz and grpc-go's interop client."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import components
import pytest
from bundles import FEATURES
from certificates import HOSTS, Authority, grants, server_tls
from servers import RunningServer, settings, start_server
from waiting import PATIENCE

SCORING = "scorer.v1.ScoringService"
SCORE: dict[str, Any] = {
    "checkpoint": "fraud.checkout",
    "named": {"features": [{"name": name, "number": 1.5} for name in FEATURES]},
}


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program that is a component of the tests."""
    path = components.require_program(program)
    return subprocess.run([path, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False)


def call(server: RunningServer, method: str, message: dict[str, Any], *options: str) -> dict[str, Any]:
    """Call a method by grpcurl, which gets the messages by reflection; return the reply or the status."""
    done = run(
        "grpcurl", "-plaintext", "-format-error", *options, "-d", json.dumps(message), server.address, method
    )
    reply: dict[str, Any] = json.loads(done.stdout or done.stderr)
    return reply


def test_grpcurl_describes_every_service_that_it_lists(server: RunningServer) -> None:
    listed = run("grpcurl", "-plaintext", server.address, "list")
    assert listed.returncode == 0, listed.stderr
    services = listed.stdout.split()
    assert {SCORING, "inference.GRPCInferenceService", "grpc.health.v1.Health"} <= set(services)
    for service in services:
        described = run("grpcurl", "-plaintext", server.address, "describe", service)
        assert described.returncode == 0, described.stderr
        assert f"service {service.rsplit('.', 1)[-1]} {{" in described.stdout


def test_grpcurl_gets_replies_and_statuses(server: RunningServer) -> None:
    reply = call(server, f"{SCORING}/Score", SCORE)
    assert 0.0 <= reply["score"] <= 1.0
    assert reply["decision"] in ("approve", "review", "decline")
    codes = {
        "NOT_FOUND": call(server, f"{SCORING}/Score", SCORE | {"checkpoint": "unknown"}),
        "INVALID_ARGUMENT": call(server, f"{SCORING}/Score", SCORE | {"request_id": "x" * 65}),
    }
    numbers = {name: reply["code"] for name, reply in codes.items()}
    assert numbers == {"NOT_FOUND": 5, "INVALID_ARGUMENT": 3}
    assert all(reply["message"] for reply in codes.values())


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    authority = Authority(tmp_path / "tls")
    authority.issue("server", HOSTS)
    for name in ("checkout", "other"):
        authority.issue(name)
    return authority


@pytest.fixture
def mtls_server(tmp_path: Path, authority: Authority, registry: object) -> Iterator[RunningServer]:
    """A server that requires client certificates and grants roles to the checkout."""
    section = server_tls(authority.directory) + grants({"checkout": ["score", "describe"]})
    with start_server(tmp_path, settings() + section) as server:
        yield server


def test_grpcurl_calls_over_tls_with_a_certificate(mtls_server: RunningServer, authority: Authority) -> None:
    files = authority.directory

    def call_as(name: str | None) -> subprocess.CompletedProcess[str]:
        shown = () if name is None else ("-cert", f"{files}/{name}.pem", "-key", f"{files}/{name}.key")
        return run(
            "grpcurl", "-cacert", f"{files}/ca.pem", *shown, "-format-error", "-d", json.dumps(SCORE),
            mtls_server.address, f"{SCORING}/Score",
        )  # fmt: skip

    done = call_as("checkout")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["decision"] in ("approve", "review", "decline")
    denied = call_as("other")
    assert denied.returncode != 0
    assert "spiffe://example.org/other" in denied.stderr
    without = call_as(None)
    assert without.returncode != 0
    assert "certificate required" in without.stderr
    plain = run("grpcurl", "-plaintext", "-max-time", "20", mtls_server.address, "list")
    assert plain.returncode != 0


@pytest.mark.parametrize("connections", [1, 8])
def test_ghz_gets_a_reply_to_every_request_over_tls(
    mtls_server: RunningServer, authority: Authority, tmp_path: Path, connections: int
) -> None:
    files = authority.directory
    done = run(
        "ghz", "--cacert", f"{files}/ca.pem", "--cert", f"{files}/checkout.pem",
        "--key", f"{files}/checkout.key", "--call", f"{SCORING}/Score", "--data", json.dumps(SCORE),
        "--total", "500", "--concurrency", "16", "--connections", str(connections),
        "--format", "json", "--output", str(tmp_path / "report.json"), mtls_server.address,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "report.json").read_text())["statusCodeDistribution"] == {"OK": 500}


@pytest.mark.parametrize("connections", [1, 8])
def test_ghz_gets_a_reply_to_every_request(server: RunningServer, tmp_path: Path, connections: int) -> None:
    total = 2000
    done = run(
        "ghz", "--insecure", "--call", f"{SCORING}/Score", "--data", json.dumps(SCORE),
        "--total", str(total), "--concurrency", "16", "--connections", str(connections),
        "--format", "json", "--output", str(tmp_path / "report.json"), server.address,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["statusCodeDistribution"] == {"OK": total}
    assert not report["errorDistribution"]


@pytest.mark.parametrize("case", ["unimplemented_method", "unimplemented_service"])
def test_grpc_go_gets_unimplemented(server: RunningServer, case: str) -> None:
    host, port = server.address.rsplit(":", 1)
    done = run("grpc-interop-client", "--server_host", host, "--server_port", port, "--test_case", case)
    assert done.returncode == 0, done.stderr
