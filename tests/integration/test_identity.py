"""Tests of TLS, callers and roles of ``scorer serve`` with gRPC's own client, and of the control service."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest
from servers import RunningServer, scorer_in_process, settings, start_server
from waiting import wait_until

from scorer import bridge, credentials
from scorer.credentials import ClientTls
from scorer.errors import ConfigError
from scorer.release.errors import RefusedError, UnreachableError
from scorer.release.fleet import Fleet, Member
from scorer.v1 import control_pb2, control_pb2_grpc, scoring_pb2_grpc
from scorer.v1 import scoring_pb2 as pb

DOMAIN = "example.org"
HOSTS = ["localhost", "127.0.0.1"]


def fleet_files(directory: Path) -> Path:
    """An authority with certificates for a server and its clients."""
    members = [("server", HOSTS), *((name, []) for name in ("checkout", "operator", "platform"))]
    bridge.write_fleet(str(directory), DOMAIN, members, 1)
    return directory


def secured(tls: Path, *, identity: str = "") -> str:
    """Return settings with client certificates and a grant for each client."""
    grants = "".join(
        f'[[identity.grants]]\nprincipal = "spiffe://{DOMAIN}/{name}"\nroles = {json.dumps(roles)}\n'
        for name, roles in {
            "checkout": ["score", "describe"],
            "operator": ["operate"],
            "platform": ["operate"],
        }.items()
    )
    section = (
        f'[server.tls]\ncertificate = "{tls / "server.pem"}"\nkey = "{tls / "server.key"}"\n'
        f'client_ca = "{tls / "ca.pem"}"\ncrl = ["{tls / "revoked.pem"}"]\nreload_ms = 20\n'
        f'[identity]\ntrust_domain = "{DOMAIN}"\n{identity}{grants}'
    )
    return settings() + section


def client(tls: Path, name: str | None) -> ClientTls:
    if name is None:
        return ClientTls(tls / "ca.pem")
    return ClientTls(tls / "ca.pem", tls / f"{name}.pem", tls / f"{name}.key")


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    return fleet_files(tmp_path / "tls")


@pytest.fixture
def server(tmp_path: Path, tls: Path, registry: object) -> Iterator[RunningServer]:
    with start_server(tmp_path, secured(tls)) as running:
        yield running


def describe(address: str, tls: ClientTls | None, **metadata: str) -> pb.DescribeResponse:
    with credentials.channel(address, tls) as channel:
        stub = scoring_pb2_grpc.ScoringServiceStub(channel)
        return stub.Describe(pb.DescribeRequest(), timeout=10, metadata=tuple(metadata.items()))


def code_of(error: pytest.ExceptionInfo[grpc.RpcError]) -> grpc.StatusCode:
    return error.value.code()


@pytest.mark.fault_case(44)
@pytest.mark.fault_case(45)
def test_a_client_needs_tls_a_certificate_and_a_grant(
    server: RunningServer, tls: Path, tmp_path: Path
) -> None:
    description = describe(server.address, client(tls, "checkout"))
    assert [entry.checkpoint for entry in description.checkpoints] == ["action.authorise", "fraud.checkout"]
    for refused in (None, client(tls, None)):
        with pytest.raises(grpc.RpcError) as error:
            describe(server.address, refused)
        assert code_of(error) is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.RpcError) as error:
        describe(server.address, client(tls, "operator"))
    assert code_of(error) is grpc.StatusCode.PERMISSION_DENIED
    assert "spiffe://example.org/operator has no grant of the role describe" in error.value.details()
    stranger = fleet_files(tmp_path / "stranger")
    other = ClientTls(tls / "ca.pem", stranger / "checkout.pem", stranger / "checkout.key")
    with pytest.raises(grpc.RpcError) as error:
        describe(server.address, other)
    assert code_of(error) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.fault_case(44)
def test_old_tls_versions_and_other_protocols_are_refused(server: RunningServer, tls: Path) -> None:
    host, _, port = server.address.rpartition(":")
    context = ssl.create_default_context(cafile=str(tls / "ca.pem"))
    context.load_cert_chain(tls / "checkout.pem", tls / "checkout.key")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    with pytest.raises(OSError, match="alert"), _connected(context, host, int(port)):
        pass
    describe(server.address, client(tls, "checkout"))


def _connected(context: ssl.SSLContext, host: str, port: int) -> ssl.SSLSocket:
    return context.wrap_socket(socket.create_connection((host, port), timeout=30), server_hostname=host)


@pytest.mark.fault_case(50)
def test_the_control_service_needs_the_role_operate_and_records_the_caller(
    server: RunningServer, tls: Path
) -> None:
    def status(tls: ClientTls | None) -> control_pb2.GetStatusResponse:
        with credentials.channel(server.control, tls) as channel:
            stub = control_pb2_grpc.ControlServiceStub(channel)
            return stub.GetStatus(control_pb2.GetStatusRequest(), timeout=10)

    assert status(client(tls, "operator")).state == "SERVING"
    for refused in (None, client(tls, None)):
        with pytest.raises(grpc.RpcError) as error:
            status(refused)
        assert code_of(error) is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.RpcError) as error:
        status(client(tls, "checkout"))
    assert code_of(error) is grpc.StatusCode.PERMISSION_DENIED
    with credentials.channel(server.control, client(tls, "operator")) as channel:
        stub = control_pb2_grpc.ControlServiceStub(channel)
        table = stub.ListLanes(control_pb2.ListLanesRequest(), timeout=10)
        (entry,) = (one for one in table.checkpoints if one.checkpoint == "fraud.checkout")
        stub.SetObservers(
            control_pb2.SetObserversRequest(
                checkpoint="fraud.checkout",
                lanes=[control_pb2.Lane(name="observer", bundle=entry.lanes[0].bundle, sample=0.5)],
                reason="a test",
            ),
            timeout=30,
        )
    assert server.event("control_call", method="SetObservers")["principal"] == "spiffe://example.org/operator"
    changed = [event for event in server.events if event.get("reason") == "a test"]
    assert changed
    assert {event["principal"] for event in changed} == {"spiffe://example.org/operator"}


@pytest.mark.fault_case(50)
def test_the_platform_calls_with_its_own_certificate(server: RunningServer, tls: Path) -> None:
    member = Member("live-1", server.control)
    for tls_of_platform, reachable in ((client(tls, "platform"), True), (None, False)):
        fleet = Fleet([member], tls=tls_of_platform)
        try:
            assert fleet.status(member).reachable is reachable
        finally:
            fleet.close()
    fleet = Fleet([member], tls=client(tls, "checkout"))
    try:
        with pytest.raises(RefusedError, match="no grant of the role operate"):
            fleet.manage(member, "fraud.checkout")
    finally:
        fleet.close()
    fleet = Fleet([member], tls=ClientTls(tls / "missing.pem"))
    with pytest.raises(UnreachableError, match="missing"):
        fleet.manage(member, "fraud.checkout")


@pytest.mark.fault_case(46)
def test_replaced_certificates_are_used_by_both_listeners(
    server: RunningServer, tls: Path, tmp_path: Path
) -> None:
    new = fleet_files(tmp_path / "new")
    both = (tls / "ca.pem").read_text() + (new / "ca.pem").read_text()
    lists = (tls / "revoked.pem").read_text() + (new / "revoked.pem").read_text()
    with credentials.channel(server.address, client(tls, "checkout")) as kept:
        stub = scoring_pb2_grpc.ScoringServiceStub(kept)
        stub.Describe(pb.DescribeRequest(), timeout=10)
        for name, text in {
            "revoked.pem": lists,
            "ca.pem": both,
            "server.key": (new / "server.key").read_text(),
            "server.pem": (new / "server.pem").read_text(),
        }.items():
            next_file = tls / f".{name}"
            next_file.write_text(text)
            next_file.replace(tls / name)
            # Between both replacements, the new key without its certificate must not be used.
            stub.Describe(pb.DescribeRequest(), timeout=10)

        def answered(address: str, name: str) -> bool:
            with credentials.channel(address, client(new, name)) as channel:
                try:
                    if address == server.address:
                        scoring_pb2_grpc.ScoringServiceStub(channel).Describe(
                            pb.DescribeRequest(), timeout=10
                        )
                    else:
                        control_pb2_grpc.ControlServiceStub(channel).GetStatus(
                            control_pb2.GetStatusRequest(), timeout=10
                        )
                except grpc.RpcError:
                    return False
                return True

        wait_until(lambda: answered(server.address, "checkout"), "the new certificate at the data plane")
        wait_until(lambda: answered(server.control, "operator"), "the new certificate at the control service")
        stub.Describe(pb.DescribeRequest(), timeout=10)
    assert server.named("tls_replaced")


class _Issuer(BaseHTTPRequestHandler):
    """Serves a key set until the test sets a failure."""

    body = (
        b'{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a",'
        b'"x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}'
    )
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.mark.fault_case(49)
def test_keys_are_fetched_and_kept_while_their_issuer_is_unreachable(tmp_path: Path) -> None:
    from scorer.config.identity import JwtSettings
    from scorer.control.keys import KeyFetcher
    from scorer.events import EventLog

    class Handler(_Issuer):
        pass

    issuer = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=issuer.serve_forever, daemon=True)
    thread.start()
    keys = tmp_path / "jwks.json"
    chosen = JwtSettings(
        issuer="a", audience="b", keys=keys, keys_url=f"http://127.0.0.1:{issuer.server_port}/jwks"
    )
    with (tmp_path / "events").open("wb") as stream:
        fetcher = KeyFetcher(chosen, EventLog(stream))
        assert fetcher.fetch()
        assert keys.read_bytes() == _Issuer.body
        os.utime(keys, (1, 1))
        for status, body in ((500, b""), (200, b"<html>"), (200, b"[]"), (200, b"x" * (2 << 20)), (302, b"")):
            Handler.status, Handler.body = status, body
            assert not fetcher.fetch()
            assert keys.read_bytes() == _Issuer.body
            assert keys.stat().st_mtime == 1, "the age is counted from the last response of the issuer"
        issuer.shutdown()
        issuer.server_close()
        thread.join()
        assert not fetcher.fetch()
    assert b"jwt_keys_not_fetched" in (tmp_path / "events").read_bytes()


@pytest.mark.fault_case(48)
def test_a_token_is_refused_by_both_services(tmp_path: Path, tls: Path, registry: object) -> None:
    keys = tmp_path / "jwks.json"
    keys.write_bytes(_Issuer.body)
    jwt = f'[identity.jwt]\nissuer = "a"\naudience = "scorer"\nkeys = "{keys}"\n'
    with start_server(tmp_path, secured(tls, identity=jwt)) as server:
        for value in ("Bearer e30.e30.", "Basic YTpi", "Bearer eyJhbGciOiJub25lIn0.e30."):
            with pytest.raises(grpc.RpcError) as error:
                describe(server.address, client(tls, "checkout"), authorization=value)
            assert code_of(error) is grpc.StatusCode.UNAUTHENTICATED
            with credentials.channel(server.control, client(tls, "operator")) as channel:
                stub = control_pb2_grpc.ControlServiceStub(channel)
                with pytest.raises(grpc.RpcError) as error:
                    stub.GetStatus(
                        control_pb2.GetStatusRequest(), timeout=10, metadata=(("authorization", value),)
                    )
                assert code_of(error) is grpc.StatusCode.UNAUTHENTICATED


def test_five_commands_set_up_a_trial_fleet(
    tmp_path: Path, registry: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = scorer_in_process("identity", "init", str(tmp_path / "tls"))
    assert created.returncode == 0, created.stderr
    text, _, rest = created.stdout.partition("[server.tls]")[2].partition("Then, as the operator")
    file = tmp_path / "scorer.toml"
    file.write_text(settings() + "[server.tls]" + text)
    checked = scorer_in_process("identity", "check", str(file))
    assert checked.returncode == 0, checked.stderr
    assert "client certificates required" in checked.stdout
    assert "spiffe://scorer.internal/checkout" in checked.stdout
    again = scorer_in_process("identity", "init", str(tmp_path / "tls"))
    assert again.returncode == 64
    assert "exists already" in again.stderr
    for line in rest.splitlines():
        name, _, value = line.removeprefix("export ").partition("=")
        if value:
            monkeypatch.setenv(name, value)
    with start_server(tmp_path) as server:
        assert server.status()["state"] == "SERVING"
        monkeypatch.delenv(credentials.CA)
        monkeypatch.delenv(credentials.CERTIFICATE)
        monkeypatch.delenv(credentials.KEY)
        refused = server.cli("status")
        assert refused.returncode != 0
        assert credentials.CA in refused.stderr
    (tmp_path / "tls" / "server.key").write_text("no key")
    broken = scorer_in_process("identity", "check", str(file))
    assert broken.returncode == 64
    assert "server.key" in broken.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({credentials.CERTIFICATE: "a", credentials.CA: "b"}, "go together"),
        ({credentials.CERTIFICATE: "a", credentials.KEY: "b"}, "name the server's authority"),
    ],
)
def test_an_incomplete_credential_is_an_error(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClientTls.from_environment(given)
