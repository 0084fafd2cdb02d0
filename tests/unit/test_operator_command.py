"""Tests of `scorer operator`: packages, configuration, and refusals of the API server in one line."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from servers import scorer_in_process

from scorer.errors import ClusterError
from scorer.operator.cluster import Cluster
from scorer.operator.names import Object

SERVICE: Object = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": "default"}}


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "scorer.operator.handlers", raising=False)
    monkeypatch.setitem(sys.modules, "kopf", None)
    done = scorer_in_process("operator")
    assert done.returncode == 1
    assert done.stderr == 'error: this command needs the package "kopf"; install scorer[operator]\n'


def test_the_user_of_the_process_needs_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from scorer.operator import handlers

    given: dict[str, Any] = {}
    monkeypatch.setattr(handlers.kopf, "configure", lambda **_: None)
    monkeypatch.setattr(handlers.kopf, "run", lambda **options: given.update(options))
    monkeypatch.setattr(handlers.Cluster, "connect", lambda _: None)
    handlers.run(namespaces=[], kubeconfig=None, interval=1.0, health=None)
    # Without an identity kopf calls getpass.getuser(), which fails for the user of a container.
    assert given["identity"] == "scorer-operator"


def test_a_missing_kubeconfig_is_one_line(tmp_path: Path) -> None:
    done = scorer_in_process("operator", "--kubeconfig", str(tmp_path / "none.yaml"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: no Kubernetes configuration: ")
    assert done.stderr.endswith("name a file with --kubeconfig\n")
    assert done.stderr.count("\n") == 1


def write_kubeconfig(directory: Path, port: int) -> str:
    path = directory / "kubeconfig.yaml"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "a", "user": {"token": "secret"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "current-context": "a",
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


@contextmanager
def api(
    directory: Path, *answers: tuple[int, Any]
) -> Iterator[tuple[Cluster, list[tuple[str, str, Any, str]]]]:
    """A server that gives the answers one after another, and the requests that it got."""
    left, requests = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            assert self.headers["Authorization"] == "Bearer secret"
            requests.append(
                (self.command, self.path, json.loads(body or b"null"), self.headers.get("Content-Type", ""))
            )
            status, answer = left.pop(0)
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PATCH = do_POST = do_DELETE = _answer  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield Cluster.connect(write_kubeconfig(directory, int(server.server_address[1]))), requests
    finally:
        server.shutdown()
        thread.join(30)
        server.server_close()


def test_an_object_is_applied_without_force_first(tmp_path: Path) -> None:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": 'conflict with "kubectl" using v1',
            "field": ".spec.type",
        }
    ]
    conflict = {"message": "Apply failed", "details": {"kind": "services", "name": "a", "causes": causes}}
    with api(tmp_path, (200, SERVICE), (409, conflict), (200, SERVICE)) as (cluster, requests):
        assert cluster.apply(SERVICE) == (SERVICE, "")
        _, note = cluster.apply(SERVICE)
    assert note == 'Service a: changed by others: spec.type ("kubectl" using v1)'
    path = "/api/v1/namespaces/default/services/a?fieldManager=scorer-operator&force="
    assert [one[1] for one in requests] == [f"{path}false", f"{path}false", f"{path}true"]
    assert {one[3] for one in requests} == {"application/apply-patch+yaml"}
    assert requests[0][2] == SERVICE


def test_a_number_that_the_autoscaler_has_just_set_stays(tmp_path: Path) -> None:
    wanted = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": SERVICE["metadata"]}
    causes = [{"reason": "FieldManagerConflict", "message": 'conflict with "hpa"', "field": ".spec.replicas"}]
    conflict = {"message": "Apply failed", "details": {"causes": causes}}
    with api(tmp_path, (409, conflict), (200, wanted)) as (cluster, requests):
        _, note = cluster.apply({**wanted, "spec": {"replicas": 2, "serviceName": "a"}}, leave_replicas=True)
    assert note == ""
    assert requests[1][2]["spec"] == {"serviceName": "a"}
    assert requests[1][1].endswith("force=false")


def test_what_is_gone_is_no_error_and_what_exists_is_not_created_again(tmp_path: Path) -> None:
    gone, exists = (404, {"message": "not found"}), (409, {"message": "already exists"})
    with api(tmp_path, gone, gone, gone, exists, gone) as (cluster, requests):
        assert cluster.get("Service", "default", "a") is None
        cluster.merge("Service", "default", "a", {"spec": None}, part="status")
        cluster.delete("Service", "default", "a")
        cluster.create(SERVICE)
        assert not cluster.has_cert_manager()
    assert [one[0] for one in requests] == ["GET", "PATCH", "DELETE", "POST", "GET"]
    assert requests[1][1] == "/api/v1/namespaces/default/services/a/status"
    assert requests[1][3] == "application/merge-patch+json"
    assert requests[1][2] == {"spec": None}
    assert requests[3][2] == SERVICE


def test_a_list_is_read_page_by_page(tmp_path: Path) -> None:
    first = {"items": [{"a": 1}], "metadata": {"continue": "next page"}}
    with api(tmp_path, (200, first), (200, {"items": [{"a": 2}], "metadata": {}})) as (cluster, requests):
        assert cluster.list("Pod", "default", {"app": "x"}) == [{"a": 1}, {"a": 2}]
    assert "labelSelector=app%3Dx" in requests[0][1]
    assert "continue=next" in requests[1][1]


@pytest.mark.parametrize(
    ("answer", "reason", "status"),
    [
        ((403, {"message": "pods is forbidden:\nno right"}), "pods is forbidden: no right", 403),
        ((500, b"<html>"), "GET /api/v1/namespaces/default/pods: HTTP 500", 500),
    ],
)
def test_a_refusal_is_one_line(tmp_path: Path, answer: tuple[int, Any], reason: str, status: int) -> None:
    with api(tmp_path, answer) as (cluster, _), pytest.raises(ClusterError) as caught:
        cluster.list("Pod", "default")
    assert (str(caught.value), caught.value.status) == (reason, status)


def test_a_server_that_is_away_is_one_line(tmp_path: Path) -> None:
    with api(tmp_path) as (cluster, _):
        pass
    with pytest.raises(ClusterError, match="the Kubernetes API does not answer GET") as caught:
        cluster.get("Service", "default", "a")
    assert caught.value.status == 0
    assert "\n" not in str(caught.value)
