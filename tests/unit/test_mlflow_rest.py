"""Tests of the MLflow client against faulty servers: every call ends in time, with a documented error."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes import fake_manifest

from scorer.errors import BundleError, InvalidReferenceError, RegistryUnavailableError
from scorer.registry.base import AliasChange
from scorer.registry.mlflow import artifacts, versions
from scorer.registry.mlflow.rest import MlflowRefusedError, Rest, check_url
from scorer.registry.rows import before_current

Say = Callable[[socket.socket], None]


@contextmanager
def answering(say: Say) -> Iterator[str]:
    """A server that reads one request of every connection and then calls `say`."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=one, args=(connection,), daemon=True).start()

        def one(connection: socket.socket) -> None:
            with closing(connection):
                try:
                    connection.recv(65536)
                    say(connection)
                except OSError:
                    pass

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def sends(body: bytes, *, status: str = "200 OK", length: int | None = None) -> Say:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n"
    return lambda connection: connection.sendall(head.encode() + body)


def drips(connection: socket.socket) -> None:
    """Return a function that sends bytes slowly, so that the timeout of a socket is never reached."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    connection.settimeout(0.05)
    while True:
        try:
            if connection.recv(1) == b"":
                return
        except TimeoutError:
            connection.sendall(b"x")


GARBAGE: dict[str, Say] = {
    "silence": lambda connection: None,
    "not HTTP": lambda connection: connection.sendall(b"\x00\xff" * 50 + b"\r\n\r\n"),
    "HTML": sends(b"<html>"),
    "a list": sends(b"[]"),
    "too deep": sends(b"[" * 200_000),
    "a redirect": sends(b"", status="302 Found"),
    "a failure": sends(b"oops", status="500 Internal Server Error"),
    "a refusal of nobody": sends(b"no", status="404 Not Found"),
    "credentials": sends(json.dumps({"error_code": "X", "message": "y"}).encode(), status="401 Unauthorized"),
    "cut short": sends(b'{"a":', length=500),
    "endless head": lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200),
    "drip": drips,
}


@pytest.mark.parametrize(
    "name",
    ["forest.bin", "member-01.onnx", "score_map.json", "function-01.wasm", "functions.json", "list-01.txt"],
)
def test_names_of_files_of_a_bundle_are_accepted(name: str) -> None:
    assert artifacts._NAME.fullmatch(name)


@pytest.mark.fault_case(65)
@pytest.mark.parametrize("case", GARBAGE)
def test_garbage_is_reported_as_unavailability_with_a_constant_message(case: str) -> None:
    with answering(GARBAGE[case]) as url:
        rest = Rest(url, seconds=1.0 if case == "drip" else 20.0, environment={})
        messages = set()
        for _ in range(2):
            with pytest.raises(RegistryUnavailableError) as caught:
                rest.get("/registered-models/get", name="a")
            messages.add(str(caught.value))
        assert len(messages) == 1
        (line,) = messages
        assert url in line
        assert "\n" not in line


def test_an_unreachable_server_is_reported() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(RegistryUnavailableError, match="Connection refused"):
        Rest(f"http://127.0.0.1:{port}", environment={}).get("/x")


def test_a_refusal_keeps_its_code() -> None:
    body = json.dumps({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no\nsuch"}).encode()
    with answering(sends(body, status="404 Not Found")) as url, pytest.raises(MlflowRefusedError) as caught:
        Rest(url, environment={}).get("/x")
    assert caught.value.code == "RESOURCE_DOES_NOT_EXIST"
    assert str(caught.value).endswith("refuses: no such")


def test_a_download_is_bounded_and_a_truncated_one_is_detected(tmp_path: Path) -> None:
    with answering(sends(b"x" * 100_000)) as url, (tmp_path / "file").open("wb") as sink:
        assert Rest(url, environment={}).download("a/b", sink, limit=1000) == 1001
    assert (tmp_path / "file").stat().st_size == 1001
    with (
        answering(sends(b"x" * 100, length=1000)) as url,
        (tmp_path / "other").open("wb") as sink,
        pytest.raises(RegistryUnavailableError),
    ):
        Rest(url, environment={}).download("a/b", sink, limit=5000)


def test_a_full_local_disk_is_not_reported_as_an_error_of_the_server() -> None:
    with (
        answering(sends(b"x" * 100_000)) as url,
        Path("/dev/full").open("wb", buffering=0) as sink,
        pytest.raises(OSError, match="No space left"),
    ):
        Rest(url, environment={}).download("a/b", sink, limit=200_000)


@pytest.mark.fault_case(93)
def test_closing_ends_a_request_in_flight() -> None:
    asked, failed = threading.Event(), threading.Event()

    def hang(connection: socket.socket) -> None:
        asked.set()
        connection.recv(1)

    with answering(hang) as url:
        rest = Rest(url, seconds=100.0, environment={})

        def send_request() -> None:
            with pytest.raises(RegistryUnavailableError):
                rest.get("/x")
            failed.set()

        thread = threading.Thread(target=send_request)
        thread.start()
        assert asked.wait(30)
        rest.close()
        assert failed.wait(30)
        thread.join()
        with pytest.raises(RegistryUnavailableError, match="no longer asked"):
            rest.get("/x")


@pytest.mark.parametrize(
    ("environment", "sent"),
    [
        ({"MLFLOW_TRACKING_TOKEN": "t"}, "Authorization: Bearer t"),
        ({"MLFLOW_TRACKING_USERNAME": "u", "MLFLOW_TRACKING_PASSWORD": "p"}, "Authorization: Basic dTpw"),
    ],
)
def test_credentials_are_sent_as_by_the_clients_of_mlflow(environment: dict[str, str], sent: str) -> None:
    heard: list[bytes] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with closing(connection):
                heard.append(connection.recv(65536))
                sends(b"{}")(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        Rest(f"http://127.0.0.1:{listener.getsockname()[1]}/ml/", environment=environment).get("/x", a="b c")
        thread.join()
    assert heard[0].startswith(b"GET /ml/api/2.0/mlflow/x?a=b+c HTTP/1.1\r\n")
    assert sent.encode() in heard[0]


@pytest.mark.parametrize(
    "url", ["", "ftp://a", "http://", "http://a:b", "http://a?b=c", "http://a\n/", "a:5000"]
)
def test_invalid_addresses_are_refused(url: str) -> None:
    with pytest.raises(InvalidReferenceError, match="no address"):
        check_url(url)


def test_credentials_in_the_address_are_refused() -> None:
    with pytest.raises(InvalidReferenceError, match="MLFLOW_TRACKING_PASSWORD") as caught:
        check_url("http://ann:secret@host")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    [
        "mlflow-artifacts:/1/../../etc",
        "mlflow-artifacts:/1//b",
        "mlflow-artifacts:/1/%2e%2e/b",
        "mlflow-artifacts:/1/a?b=c",
        "mlflow-artifacts:",
        "http://evil/steal",
        "s3://bucket/a",
        "file:///etc/passwd",
        "/etc/passwd",
    ],
)
def test_artifacts_at_other_places_are_refused(uri: str) -> None:
    with pytest.raises(BundleError):
        artifacts.proxied_path(uri, Rest("http://127.0.0.1:1", environment={}))


def test_only_the_path_of_an_artifact_address_is_used() -> None:
    rest = Rest("http://127.0.0.1:1", environment={})
    for uri in (
        "mlflow-artifacts:/1/r/artifacts/bundle",
        "mlflow-artifacts://elsewhere:99/1/r/artifacts/bundle",
        "http://elsewhere/api/2.0/mlflow-artifacts/artifacts/1/r/artifacts/bundle",
    ):
        assert artifacts.proxied_path(uri, rest) == "1/r/artifacts/bundle"


class FewFiles:
    """Replaces `Rest` in tests that only read files."""

    def __init__(self, **files: bytes) -> None:
        self.files = {name.replace("_", "."): content for name, content in files.items()}

    def list_artifacts(self, path: str) -> dict[str, int]:
        return {name: len(content) for name, content in self.files.items()}

    def download(self, path: str, sink: Any, *, limit: int) -> int:
        return int(sink.write(self.files[path.rpartition("/")[2]][: limit + 1]))


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"../../evil.bin": {"sha256": "1" * 64, "bytes": 1}}, "only plain names"),
        ({"code.py": {"sha256": "1" * 64, "bytes": 1}}, "no bundle has one of that name"),
        ({"forest.bin": {"sha256": "1" * 64, "bytes": 1 << 40}}, "has no size"),
        ({"forest.bin": {"sha256": "1" * 64, "bytes": True}}, "has no size"),
        ({"forest.bin": 5}, "has no size"),
        ({f"member-{n}.bin": {"sha256": "1" * 64, "bytes": 1} for n in range(200)}, "more than 128 files"),
    ],
)
def test_a_manifest_cannot_request_more_than_the_limits_of_a_bundle(
    files: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    manifest = {**json.loads(fake_manifest()), "digest": "sha256:" + "0" * 64, "files": files}
    digest = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
    text = json.dumps(manifest).replace("0" * 64, digest, 1).encode()
    with pytest.raises(BundleError, match=reason):
        artifacts.fetch(FewFiles(manifest_json=text), "f", f"sha256:{digest}", tmp_path)  # type: ignore[arg-type]
    assert [entry.name for entry in tmp_path.rglob("*")] == ["manifest.json"]


def test_a_list_whose_pages_never_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    page = json.dumps({"model_versions": [], "registered_models": [{}], "next_page_token": "more"}).encode()
    monkeypatch.setattr(versions, "_MAX_PAGES", 3)
    with answering(sends(page)) as url:
        rest = Rest(url, seconds=20.0, environment={})
        with pytest.raises(RegistryUnavailableError, match="more than 3 pages"):
            list(versions.models(rest))


def test_a_history_without_the_entry_that_a_rollback_undid_has_no_earlier_value() -> None:
    rollback = AliasChange(2, "a@live", "sha256:b", "sha256:a", "rollback", 1, "", "")
    assert before_current([rollback]) is None
