"""nginx and HAProxy in front of servers, with the configurations of deploy/nginx and deploy/haproxy."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtests.figures import ROOT

CONFIGURATIONS: Final = {
    "nginx": ROOT / "deploy/nginx/scorer.conf",
    "haproxy": ROOT / "deploy/haproxy/haproxy.cfg",
}
"""The configuration that users copy, by name of the balancer."""

_LISTEN: Final = "10.0.0.10:7700"
_SERVER: Final = re.compile(r"10\.0\.0\.1(?P<number>[1-9]):7700(?P<check> port 7702)?")
_CERTIFICATES: Final = "/etc/scorer-tls/"
_STARTS: Final = 5
_SECONDS: Final = 20.0
_NGINX_MAIN: Final = """\
{user}pid "{directory}/nginx.pid";
worker_processes 1;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path "{directory}/body";
    proxy_temp_path "{directory}/proxy";
    fastcgi_temp_path "{directory}/fastcgi";
    uwsgi_temp_path "{directory}/uwsgi";
    scgi_temp_path "{directory}/scgi";
    include "{directory}/scorer.conf";
}}
"""
"""What Debian's /etc/nginx/nginx.conf contains around conf.d, with paths of a directory of its own."""


@dataclass(frozen=True)
class Backend:
    """The listeners of a server, "host:port".

    Attributes:
        address: Address of the data plane.
        metrics: Address of the metrics, with the readiness that HAProxy checks.
    """

    address: str
    metrics: str


@dataclass(frozen=True)
class Balancer:
    """A running balancer.

    Attributes:
        name: "nginx" or "haproxy".
        address: Address at which clients call it, "host:port".
        backends: The servers.
        directory: Directory of its files.
        certificates: See `configuration`.
        pid: The process that was started.
    """

    name: str
    address: str
    backends: Sequence[Backend]
    directory: Path
    certificates: Path | None
    pid: int

    @property
    def pids(self) -> list[int]:
        """Its processes."""
        return [self.pid, *_children(self.pid)]

    def mark_down(self, *places: int) -> None:
        """Leave out the servers at these places from now on, and no others (nginx only).

        nginx reads its configuration again. The earlier workers end when their requests are answered.

        Raises:
            RuntimeError: They did not end within 20 s.
        """
        text = configuration(self.name, self.backends, self.address, self.certificates)
        for place in places:
            address = self.backends[place].address
            text = re.sub(rf"^( *server {re.escape(address)}) .*;$", r"\1 down;", text, flags=re.MULTILINE)
        (self.directory / "scorer.conf").write_text(text)
        before = set(_children(self.pid))
        os.kill(self.pid, signal.SIGHUP)
        deadline = time.monotonic() + _SECONDS
        while before & set(_children(self.pid)):
            if time.monotonic() > deadline:
                raise RuntimeError("nginx did not replace its workers within 20 s")
            time.sleep(0.02)


def program(name: str) -> str | None:
    """Return the path of a balancer's program; None if it is not installed."""
    # /usr/sbin is not in the PATH of every user.
    return shutil.which(name) or shutil.which(name, path="/usr/sbin")


def configuration(name: str, backends: Sequence[Backend], listen: str, certificates: Path | None) -> str:
    """Return a configuration of deploy/ with other addresses and certificates.

    Args:
        name: "nginx" or "haproxy".
        backends: At most as many servers as the configuration names.
        listen: Address to listen on.
        certificates: Directory with tls.crt, tls.key, ca.crt and tls.pem; None: without TLS.

    Raises:
        ValueError: There are more servers than the configuration names.
    """
    lines, used = [], 0
    for line in CONFIGURATIONS[name].read_text().splitlines():
        found = _SERVER.search(line)
        if found is None:
            lines.append(line.replace(_LISTEN, listen))
        elif (place := int(found["number"]) - 1) < len(backends):
            check = f" port {backends[place].metrics.rpartition(':')[2]}" if found["check"] else ""
            lines.append(line[: found.start()] + backends[place].address + check + line[found.end() :])
            used += 1
    if used != len(backends):
        raise ValueError(f"{CONFIGURATIONS[name]} names {used} servers, fewer than {len(backends)}")
    text = "\n".join(lines) + "\n"
    return _without_tls(text) if certificates is None else text.replace(_CERTIFICATES, f"{certificates}/")


def _without_tls(text: str) -> str:
    """Remove TLS from a configuration of either balancer. HTTP/2 is then used without negotiation."""
    text = re.sub(r"^ *(grpc_ssl_|ssl_|ssl-)\S.*\n", "", text, flags=re.MULTILINE)
    text = text.replace(" ssl http2;", " http2;").replace("grpcs://", "grpc://")
    return re.sub(r" ssl crt .* alpn h2$", " proto h2", text, flags=re.MULTILINE)


@contextmanager
def balancer(
    name: str,
    backends: Sequence[Backend],
    directory: Path,
    *,
    certificates: Path | None = None,
    core: int | None = None,
) -> Iterator[Balancer]:
    """Run a balancer on a free port of 127.0.0.1 until the context ends.

    Args:
        name: "nginx" or "haproxy".
        backends: The servers.
        directory: An empty or missing directory for its files.
        certificates: See `configuration`.
        core: The only core that it may use; None: those of this process.

    Raises:
        RuntimeError: It does not start; with its output.
    """
    executable = program(name)
    if executable is None:
        raise RuntimeError(f"{name} is not installed; install Debian's package {name}")
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "balancer.log"
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    for _ in range(_STARTS):
        address = f"127.0.0.1:{_free_port()}"
        text = configuration(name, backends, address, certificates)
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*pinned, *_command(name, executable, text, directory)],
                stdout=output,
                stderr=output,
                cwd=directory,
            )
        try:
            if _accepts(process, address):
                yield Balancer(name, address, backends, directory, certificates, process.pid)
                return
        finally:
            _end(process)
    raise RuntimeError(f"{name} does not start:\n{log.read_text()[-2000:]}")


def _command(name: str, executable: str, text: str, directory: Path) -> list[str]:
    if name == "haproxy":
        (directory / "haproxy.cfg").write_text(text)
        return [executable, "-db", "-f", str(directory / "haproxy.cfg")]
    (directory / "scorer.conf").write_text(text)
    # As root, nginx would change to a user that cannot read the directory.
    user = "user root;\n" if os.geteuid() == 0 else ""
    (directory / "nginx.conf").write_text(_NGINX_MAIN.format(user=user, directory=directory))
    return [
        executable,
        *("-p", str(directory)),
        *("-c", str(directory / "nginx.conf")),
        *("-e", "stderr"),
        *("-g", "daemon off;"),
    ]


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def _accepts(process: subprocess.Popen[bytes], address: str) -> bool:
    """Wait until the balancer accepts connections; return whether it does."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with socket.create_connection((host, int(port)), timeout=1.0):
                return True
        except OSError:
            time.sleep(0.02)
    return False


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the balancer and its workers."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        for child in _children(process.pid):
            os.kill(child, signal.SIGKILL)
        process.kill()
        process.wait(_SECONDS)
