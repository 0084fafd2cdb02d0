"""Tests of the configurations for nginx and HAProxy, and that both programs accept them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import components
import pytest
from replicas import issue_certificates

from loadtests.balancers import CONFIGURATIONS, Backend, balancer, configuration, program

BACKENDS = [Backend(f"127.0.0.1:{2000 + number}", f"127.0.0.1:{3000 + number}") for number in range(3)]


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_configuration_names_the_servers_and_no_example_address(name: str, count: int) -> None:
    text = configuration(name, BACKENDS[:count], "127.0.0.1:1999", Path("/certificates"))
    servers = re.findall(r"^ *server (?:scorer-\d )?(127\.0\.0\.1:\d+)", text, flags=re.MULTILINE)
    assert servers == [backend.address for backend in BACKENDS[:count]]
    assert "10.0.0." not in text
    assert "/etc/scorer-tls" not in text
    assert "127.0.0.1:1999" in text
    if name == "haproxy":
        assert [f"port {3000 + number}" in text for number in range(3)] == [at < count for at in range(3)]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_more_servers_than_the_configuration_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="names 3 servers, fewer than 4"):
        configuration(name, [*BACKENDS, Backend("127.0.0.1:2003", "127.0.0.1:3003")], "127.0.0.1:1999", None)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_without_tls_nothing_of_it_is_left(name: str) -> None:
    text = configuration(name, BACKENDS, "127.0.0.1:1999", None)
    settings = "\n".join(line for line in text.splitlines() if not line.strip().startswith("#"))
    assert not re.findall(r"ssl|grpcs|crt|alpn|certificate", settings)


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("encrypted", [True, False], ids=["tls", "plain"])
def test_the_program_starts_with_the_configuration_and_ends(
    name: str, encrypted: bool, tmp_path: Path
) -> None:
    components.require(name)
    certificates = issue_certificates(tmp_path / "tls") / "balancer" if encrypted else None
    with balancer(name, BACKENDS, tmp_path / name, certificates=certificates) as running:
        assert running.address.startswith("127.0.0.1:")
        pids = running.pids
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    if name == "haproxy":
        checked = subprocess.run(
            [str(program(name)), "-c", "-f", str(tmp_path / name / "haproxy.cfg")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == 0, checked.stderr
        assert "WARNING" not in checked.stderr
