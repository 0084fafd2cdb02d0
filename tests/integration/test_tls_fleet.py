"""Tests of processes with client certificates: TLS versions, expired certificates, authorities, a pool."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from bundles import rows, tiny_score_bundle
from certificates import HOSTS, Authority, grants, replace, server_tls
from servers import SCORE, RunningServer, settings, start_server
from waiting import wait_until

from scorer import credentials
from scorer.client import Client
from scorer.credentials import ClientTls
from scorer.registry import Registry
from scorer.release.fleet import Fleet, Member
from scorer.v1 import control_pb2, control_pb2_grpc

FRAUD = "fraud.checkout"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""The first bytes of an HTTP/2 client: the preface and empty settings."""
ROLES = {
    "checkout": ["score", "describe"],
    "live": ["observe"],
    "operator": ["operate"],
    "platform": ["operate"],
}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.of_fleet(tmp_path / "tls", ROLES)


def secured(authority: Authority, *, more: str = "") -> str:
    return settings() + server_tls(authority.directory, more=more) + grants(ROLES)


@pytest.fixture
def server(tmp_path: Path, authority: Authority, registry: Registry) -> Iterator[RunningServer]:
    with start_server(tmp_path, secured(authority)) as running:
        yield running


# --- versions ---


def agreed(address: str, tls: ClientTls, version: ssl.TLSVersion) -> str | None:
    """Connect with one TLS version; return it, or None if the server refuses it."""
    assert tls.certificate is not None
    context = ssl.create_default_context(cafile=str(tls.ca))
    context.load_cert_chain(tls.certificate, tls.key)
    context.set_alpn_protocols(["h2"])
    context.minimum_version = context.maximum_version = version
    host, _, port = address.rpartition(":")
    try:
        with (
            socket.create_connection((host, int(port)), timeout=30) as stream,
            context.wrap_socket(stream, server_hostname=host) as secure,
        ):
            # With TLS 1.3, a client learns only after its handshake whether the server accepts
            # its certificate.
            secure.sendall(PREFACE)
            return secure.version() if secure.recv(9) else None
    except OSError:
        return None


@pytest.mark.fault_case(44)
@pytest.mark.parametrize(("setting", "old"), [("", None), ('min_version = "1.2"', "TLSv1.2")])
def test_both_listeners_accept_only_the_tls_versions_of_the_setting(
    tmp_path: Path, authority: Authority, registry: Registry, setting: str, old: str | None
) -> None:
    with start_server(tmp_path, secured(authority, more=setting)) as server:
        for address in (server.address, server.control):
            operator = authority.client("operator")
            assert agreed(address, operator, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
            assert agreed(address, operator, ssl.TLSVersion.TLSv1_2) == old


# --- certificates of the platform ---


def trouble(server: RunningServer, tls: ClientTls) -> str:
    """Return the error with which the platform fails to reach the server; empty: it succeeds."""
    fleet = Fleet([Member("live-1", server.control)], tls=tls)
    try:
        status = fleet.status(fleet.members[0])
    finally:
        fleet.close()
    assert status.reachable is (not status.error)
    return status.error or ""


@pytest.mark.fault_case(45)
def test_the_platform_reports_what_is_wrong_with_its_certificate(
    server: RunningServer, authority: Authority, tmp_path: Path
) -> None:
    assert not trouble(server, authority.client("platform"))
    stranger = Authority(tmp_path / "stranger", "stranger")
    stranger.issue("platform")
    authority.issue("platform.ended", ended=timedelta(hours=1))
    named = {
        "authority of its own": ClientTls(
            authority.directory / "ca.pem",
            stranger.directory / "platform.pem",
            stranger.directory / "platform.key",
        ),
        "ended": authority.client("platform.ended"),
        "server of another authority": stranger.client("platform"),
    }
    messages = {name: trouble(server, tls) for name, tls in named.items()}
    assert "platform.ended.pem" in messages["ended"]
    assert "expired" in messages["ended"]
    assert "certificate" in messages["authority of its own"]
    assert "certificate" in messages["server of another authority"]
    replace(authority.directory / "revoked.pem", authority.revoked("platform"))
    revoked = wait_until(
        lambda: trouble(server, authority.client("platform")), "the certificate to be revoked"
    )
    assert "Revoked" in revoked
    for text in (*messages.values(), revoked):
        assert text.startswith('server "live-1"')
        assert "\n" not in text
        assert len(text) < 300, text
    assert not trouble(server, authority.client("operator")), "another certificate is still accepted"


@pytest.mark.fault_case(45)
def test_the_platform_reports_an_expired_certificate_of_a_server(
    tmp_path: Path, authority: Authority, registry: Registry
) -> None:
    with start_server(tmp_path, secured(authority)) as server:
        authority.issue("server", HOSTS, ended=timedelta(hours=1))
        text = wait_until(
            lambda: trouble(server, authority.client("platform")), "the new certificate to be used"
        )
    assert text.startswith('server "live-1"')
    assert "\n" not in text
    assert "expired" in text


# --- a new authority under load ---


class Load:
    """Threads that score without a pause. Some keep their connection, and some open one for each call."""

    def __init__(self, address: str, tls: ClientTls) -> None:
        self._address = address
        self.tls = tls
        self.calls = 0
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        jobs = (self._keep, self._keep, self._connect)
        self._threads = [threading.Thread(target=job, daemon=True) for job in jobs]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def wait_for_calls(self) -> None:
        """Wait for further calls, all of which succeed."""
        before = self.calls
        wait_until(lambda: self.failures or self.calls >= before + 60, "calls to continue")
        assert not self.failures, self.failures[:3]

    def _keep(self) -> None:
        with Client(self._address, credentials=self.tls.channel_credentials(), timeout=30) as client:
            while not self._stop.is_set():
                self._call(client)

    def _connect(self) -> None:
        while not self._stop.is_set():
            with Client(self._address, credentials=self.tls.channel_credentials(), timeout=30) as client:
                for _ in range(3):
                    self._call(client)

    def _call(self, client: Client) -> None:
        try:
            client.score(FRAUD, rows(1)[0])
        except Exception as error:
            self.failures.append(repr(error))
        else:
            with self._lock:
                self.calls += 1


@pytest.mark.fault_case(46)
def test_an_authority_is_replaced_under_load(
    server: RunningServer, authority: Authority, tmp_path: Path
) -> None:
    files = authority.directory
    following = Authority(tmp_path / "following", "following")
    for name, hosts in (("server", HOSTS), ("checkout", []), ("operator", [])):
        following.issue(name, hosts)

    def usable(tls: ClientTls) -> bool:
        return agreed(server.address, tls, ssl.TLSVersion.TLSv1_3) is not None

    # The documented steps: trust both authorities, issue new certificates, remove the old authority.
    with Load(server.address, authority.client("checkout")) as load:
        load.wait_for_calls()
        replace(files / "revoked.pem", authority.revoked() + following.revoked())
        replace(files / "ca.pem", authority.pem + following.pem)
        new = ClientTls(
            files / "ca.pem", *(following.directory / f"checkout.{end}" for end in ("pem", "key"))
        )
        wait_until(lambda: usable(new), "the new authority to be trusted")
        load.wait_for_calls()
        load.tls = new
        for name in ("server.key", "server.pem"):
            replace(files / name, (following.directory / name).read_text())
        wait_until(lambda: usable(following.client("checkout")), "the server's new certificate")
        load.wait_for_calls()
    # Kept connections still use certificates of the old authority. New clients have new certificates.
    with Load(server.address, following.client("checkout")) as load:
        load.wait_for_calls()
        replace(files / "ca.pem", following.pem)
        old = ClientTls(following.directory / "ca.pem", files / "checkout.pem", files / "checkout.key")
        wait_until(lambda: not usable(old), "the old authority to be no longer trusted")
        load.wait_for_calls()
    with credentials.channel(server.control, following.client("operator")) as channel:
        control = control_pb2_grpc.ControlServiceStub(channel)
        assert control.GetStatus(control_pb2.GetStatusRequest(), timeout=30).state == "SERVING"


# --- the shadow pool ---


def control(server: RunningServer, tls: ClientTls) -> control_pb2_grpc.ControlServiceStub:
    return control_pb2_grpc.ControlServiceStub(credentials.channel(server.control, tls))


@pytest.mark.fault_case(50)
def test_a_live_server_sends_to_its_pool_with_a_certificate(tmp_path: Path, authority: Authority) -> None:
    registry = Registry(tmp_path / "registry")
    digests = []
    for variant in (1, 2):
        tiny_score_bundle(tmp_path / f"score-{variant}", variant=variant)
        digests.append(registry.push(tmp_path / f"score-{variant}"))
    registry.alias("fraud-checkout", "live", digests[0])
    files = authority.directory
    own = f'path = "{registry.path}"\n'
    pool_text = settings(
        "".join(line + "\n" for line in SCORE.splitlines() if not line.startswith("alias")),
        server='role = "shadow"\n', registry=own,
    )  # fmt: skip
    directories = {name: tmp_path / name for name in ("pool", "live", "stranger")}
    for directory in directories.values():
        directory.mkdir()
    section = server_tls(files) + grants(ROLES)
    operator = authority.client("operator")
    sends = 20
    lane = control_pb2.Lane(name="observer", bundle=digests[1], sample=1.0, pool=True)
    wanted = control_pb2.SetObserversRequest(checkpoint=FRAUD, lanes=[lane], reason="a test")

    def live_text(pool: RunningServer, certificate: str) -> str:
        tls = (
            f'[server.shadow_pool_tls]\nca = "{files}/ca.pem"\ncertificate = "{files}/{certificate}.pem"\n'
            f'key = "{files}/{certificate}.key"\n'
        )
        return settings(SCORE, server=f'shadow_pool = "{pool.address}"\n', registry=own) + section + tls

    def score(live: RunningServer) -> None:
        with Client(live.address, credentials=authority.client("checkout").channel_credentials()) as client:
            for row in rows(sends):
                client.score(FRAUD, row)

    def sent(live: RunningServer) -> control_pb2.PoolStatus:
        return control(live, operator).GetStatus(control_pb2.GetStatusRequest(), timeout=30).pool

    with start_server(directories["pool"], pool_text + section) as pool:
        control(pool, operator).SetObservers(wanted, timeout=30)

        def evaluated() -> int:
            status = control(pool, operator).GetStatus(control_pb2.GetStatusRequest(), timeout=30)
            return sum(lane.evaluated for lane in status.observers)

        with start_server(directories["live"], live_text(pool, "live")) as live:
            control(live, operator).SetObservers(wanted, timeout=30)
            wait_until(lambda: sent(live).connected, "the connection to the pool")
            score(live)
            wait_until(lambda: sent(live).accepted == sends, "every request to be accepted by the pool")
            wait_until(lambda: evaluated() == sends, "every request to be observed")
            # A server with a revoked certificate still answers, but the pool does not observe its requests.
            replace(files / "revoked.pem", authority.revoked("live"))
            wait_until(
                lambda: not sent(live).connected or sent(live).error, "the revoked server to be refused"
            )
            score(live)
            assert sent(live).accepted == sends
        # The pool does not observe the requests of a server without a grant of the role either.
        with start_server(directories["stranger"], live_text(pool, "checkout")) as live:
            control(live, operator).SetObservers(wanted, timeout=30)
            score(live)
            wait_until(
                lambda: "role observe" in sent(live).error, "the server without the role to be refused"
            )
            assert sent(live).accepted == 0
        assert evaluated() == sends
