"""Tests of the configurations for nginx and HAProxy, and that both programs accept them."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import components
import pytest
from real_server import free_port
from replicas import issue_certificates
from waiting import PATIENCE, wait_until

from loadtests.balancers import CONFIGURATIONS, Backend, balancer, configuration, program
from scorer.client import Client, RetryPolicy, UnavailableError
from scorer.client.testing import FakeServer

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


class Readiness(BaseHTTPRequestHandler):
    """Answers as the metrics listener of a server."""

    status = 200
    checks = 0
    timeout = PATIENCE

    def do_GET(self) -> None:
        assert self.path == "/ready"
        type(self).checks += 1
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_haproxy_leaves_out_a_server_that_is_not_ready(tmp_path: Path) -> None:
    components.require("haproxy")
    with ThreadingHTTPServer(("127.0.0.1", 0), Readiness) as ready, FakeServer() as server:
        thread = threading.Thread(target=ready.serve_forever)
        thread.start()
        backend = Backend(server.target, f"127.0.0.1:{ready.server_port}")
        try:
            with (
                balancer("haproxy", [backend], tmp_path) as running,
                Client(running.address, timeout=PATIENCE) as client,
            ):
                wait_until(lambda: Readiness.checks >= 4)
                assert client.score("fraud.checkout", {"amount": 1.0}).score == 0.25

                def is_refused() -> bool:
                    try:
                        client.score("fraud.checkout", {"amount": 1.0})
                    except UnavailableError:
                        return True
                    return False

                Readiness.status = 503
                wait_until(is_refused)
                Readiness.status = 200
                wait_until(lambda: not is_refused())
        finally:
            ready.shutdown()
            thread.join(PATIENCE)


@contextmanager
def breaks_off() -> Iterator[tuple[str, list[int]]]:
    """A server that is killed at each request: it reads the request and closes the connection.

    Yields its address and, for each connection, the number of bytes that it received.
    """
    received: list[int] = []
    settings = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(PATIENCE)
                    connection.sendall(settings)  # HAProxy sends no request before
                    # The preface, the settings and the beginning of the request.
                    size = 0
                    while size < 100 and (data := connection.recv(1 << 16)):
                        size += len(data)
                    received.append(size)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", received
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)


@contextmanager
def routed(name: str, first: str, second: str, directory: Path) -> Iterator[Client]:
    """A client that repeats nothing, and calls two servers that are ready through a balancer."""
    components.require(name)
    Readiness.status = 200
    with ThreadingHTTPServer(("127.0.0.1", 0), Readiness) as ready:
        thread = threading.Thread(target=ready.serve_forever)
        thread.start()
        metrics = f"127.0.0.1:{ready.server_port}"
        backends = [Backend(first, metrics), Backend(second, metrics)]
        try:
            with (
                balancer(name, backends, directory) as running,
                Client(running.address, timeout=PATIENCE, retry=RetryPolicy(attempts=1)) as client,
            ):
                yield client
        finally:
            ready.shutdown()
            thread.join(PATIENCE)


def scored(client: Client, server: FakeServer, count: int = 6) -> None:
    """Score payments, and check that the server received each of them once."""
    payments = [f"payment-{number}" for number in range(count)]
    for payment in payments:
        assert client.score("fraud.checkout", {"amount": 1.0}, request_id=payment).score == 0.25
    assert [request.request_id for request in server.requests("Score")] == payments


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_request_that_a_server_refuses_is_sent_to_another(name: str, tmp_path: Path) -> None:
    closed = f"127.0.0.1:{free_port()}"
    with FakeServer() as server, routed(name, closed, server.target, tmp_path) as client:
        scored(client, server)


def test_haproxy_sends_a_request_in_flight_at_a_server_that_dies_to_another(tmp_path: Path) -> None:
    with (
        FakeServer() as server,
        breaks_off() as (dying, received),
        routed("haproxy", dying, server.target, tmp_path) as client,
    ):
        scored(client, server)
    assert received, "the dying server was called"


def test_nginx_leaves_it_to_the_client_to_repeat_a_request_in_flight(tmp_path: Path) -> None:
    with (
        FakeServer() as server,
        breaks_off() as (dying, received),
        routed("nginx", dying, server.target, tmp_path) as client,
    ):

        def is_refused() -> bool:
            try:
                client.score("fraud.checkout", {"amount": 1.0})
            except UnavailableError as error:
                assert "502" in str(error)
                return True
            return False

        # UNAVAILABLE, the status that clients repeat.
        wait_until(is_refused)
    assert received
