"""Tests of clients that attack a real platform process: its memory stays bounded and others are served."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from platform_process import PlatformProcess, initialised, running, write_settings
from waiting import wait_until

from scorer.web.assets import Assets

MEGABYTE = 1 << 20
LIMITS = """
header_seconds = 2.0
body_seconds = 2.0
max_connections = 64
connections_per_address = 48
streams_per_user = 4
streams = 6
stream_minutes = 0.05
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PlatformProcess, str]]:
    directory: Path = tmp_path_factory.mktemp("platform")
    write_settings(directory, web=LIMITS)
    secret = initialised(directory)
    with running(directory) as process:
        httpx.get(f"{process.url}/login", timeout=30)
        yield process, secret


def sign_in(url: str, secret: str) -> int:
    """Sign in as a regular user does; return the status."""
    with httpx.Client(base_url=url, timeout=30) as site:
        page = site.get("/login")
        result = re.search(r'name="csrf" value="([^"]*)"', page.text)
        assert result, (page.status_code, page.text[:300])
        return site.post("/login", data={"token": secret, "csrf": result[1]}).status_code


def send(port: int, head: str, body: Iterator[bytes]) -> bytes:
    """Send a request without reading meanwhile, as an attacker does; return the response."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        try:
            connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
            for part in body:
                connection.sendall(part)
        except OSError:
            pass  # the server has closed the connection
        connection.settimeout(30)
        received = b""
        try:
            while part := connection.recv(65536):
                received += part
        except OSError:
            pass
        return received


def test_a_login_of_120_megabytes_is_refused_before_it_is_buffered(
    platform: tuple[PlatformProcess, str],
) -> None:
    process, secret = platform
    before = process.memory()
    size = 120 * MEGABYTE
    heads = (
        f"Content-Length: {size}",
        "Transfer-Encoding: chunked",
    )
    for length in heads:
        chunk = b"token=" + b"x" * (MEGABYTE - 6)
        parts = (
            (chunk for _ in range(120))
            if length.startswith("Content")
            else (f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n" for _ in range(120))
        )
        head = (
            "POST /login HTTP/1.1\nHost: localhost\n"
            f"Content-Type: application/x-www-form-urlencoded\n{length}"
        )
        answer = send(process.port, head, parts)
        assert not answer or answer.startswith(b"HTTP/1.1 413"), answer[:200]
    assert process.memory("VmHWM") - before < 24 * MEGABYTE
    assert process.metric('scorer_platform_requests_refused_total{reason="body_bytes"}') >= 2
    assert sign_in(process.url, secret) == 303


@pytest.mark.parametrize("files", [8, 1000])
def test_files_in_a_sign_in_form_are_refused(platform: tuple[PlatformProcess, str], files: int) -> None:
    process, _ = platform
    before = process.memory()
    answer = httpx.post(
        f"{process.url}/login", files=[("f", (f"{n}.txt", b"x" * 10)) for n in range(files)], timeout=30
    )
    assert answer.status_code == (422 if files == 8 else 413)
    assert process.memory("VmHWM") - before < 24 * MEGABYTE
    assert not list(Path("/tmp").glob("upload-*"))


def test_bodies_that_do_not_arrive_time_out_and_others_are_served(
    platform: tuple[PlatformProcess, str],
) -> None:
    process, secret = platform
    head = (
        b"POST /api/v1/projects HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 1000000\r\n\r\n{"
    )
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", process.port))) for _ in range(40)]
        for connection in slow:
            connection.sendall(head)
        assert sign_in(process.url, secret) == 303
        for connection in slow:
            connection.settimeout(30)
            assert connection.recv(100).startswith(b"HTTP/1.1 408")
    assert process.metric('scorer_platform_requests_refused_total{reason="body_seconds"}') >= 40


def test_connections_with_headers_that_never_end_are_closed_for_others(
    platform: tuple[PlatformProcess, str],
) -> None:
    """300 connections slowly send bytes of a header. At most 64 of them may be open."""
    process, secret = platform
    stop = threading.Event()
    with ExitStack() as stack:
        slow: list[socket.socket] = []

        def drip() -> None:
            while not stop.wait(0.1):
                for connection in list(slow):
                    try:
                        connection.sendall(b"X")
                    except OSError:
                        slow.remove(connection)

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            for _ in range(300):
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", process.port), 30))
                try:
                    connection.sendall(b"GET /login HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
                except OSError:
                    continue
                slow.append(connection)
            for _ in range(5):
                assert sign_in(process.url, secret) == 303
            wait_until(lambda: not slow, "the server to close connections with headers that do not end")
        finally:
            stop.set()
            thread.join()
    assert process.metric('scorer_platform_connections_closed_total{reason="total"}') > 0
    assert process.metric('scorer_platform_connections_closed_total{reason="head_seconds"}') > 0


def test_connections_of_one_address_are_bounded_unless_it_is_a_proxy(tmp_path: Path) -> None:
    write_settings(tmp_path, web="connections_per_address = 8\ntrusted_proxies = []")
    with running(tmp_path) as process, ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection(("127.0.0.1", process.port))) for _ in range(8)]
        with socket.create_connection(("127.0.0.1", process.port)) as further:
            further.settimeout(30)
            with contextlib.suppress(ConnectionResetError):
                assert further.recv(10) == b""
        for connection in held:
            connection.close()
        wait_until(lambda: httpx.get(f"{process.url}/login").status_code == 200)
        assert process.metric('scorer_platform_connections_closed_total{reason="per_address"}') == 1


def test_a_client_that_does_not_read_is_dropped(platform: tuple[PlatformProcess, str]) -> None:
    process, _ = platform
    request = f"GET {Assets().url('plotly.min.js')} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", process.port)) as connection:
        connection.sendall(request.encode())
        wait_until(lambda: _is_closed(connection), "the server to drop the client")
    assert process.metric('scorer_platform_connections_closed_total{reason="slow_reader"}') == 1


def _is_closed(connection: socket.socket) -> bool:
    try:
        connection.send(b"G")
    except OSError:
        return True
    return False
