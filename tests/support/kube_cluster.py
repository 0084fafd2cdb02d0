"""A real kube-apiserver on a real etcd, without kubelet and controllers.

Nothing makes pods of a StatefulSet, runs a Job or collects garbage: tests create pods and set the status of
Jobs.
`make kube` builds the API server; Debian's package etcd-server has etcd.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import components
import pytest
import yaml
from real_server import free_port
from servers import environment
from waiting import wait_until

from scorer.operator.cluster import Cluster
from scorer.operator.names import Object

API_SERVER = components.BUILD / "kube" / "kube-apiserver"
KUSTOMIZE = components.BUILD / "kube" / "kustomize"
OPERATOR = "system:serviceaccount:scorer-system:scorer-operator"


def require() -> None:
    """Skip the test if the API server or etcd is not installed. CI leaves them out; `make kube` builds."""
    if not API_SERVER.exists():
        pytest.skip("kube-apiserver is not installed; `make test-kube` builds it and runs this test")
    if components.program_path("etcd") is None:
        pytest.skip("etcd is not installed; `apt-get install etcd-server` installs it")


class KubeCluster:
    """etcd and the API server, on free ports of 127.0.0.1 and in a directory of their own."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="scorer-kube-"))
        self.port = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[Any] = []

    def __enter__(self) -> KubeCluster:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)
        for log in self._logs:
            log.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def kubeconfig(self, token: str = "admin-token", port: int | None = None) -> Path:
        """Write a kubeconfig file for a token, and return its path."""
        path = self.directory / f"{token}-{port or self.port}.yaml"
        cluster = {
            "server": f"https://127.0.0.1:{port or self.port}",
            "certificate-authority": str(self.directory / "certs" / "apiserver.crt"),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(document))
        return path

    @property
    def admin(self) -> Cluster:
        return Cluster.connect(str(self.kubeconfig()))

    def call(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Any:
        """Call the API as the administrator. An error is an `ApiError`."""
        context = ssl.create_default_context(cafile=str(self.directory / "certs" / "apiserver.crt"))
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": "Bearer admin-token", "Content-Type": content},
        )
        try:
            with urllib.request.urlopen(request, timeout=20, context=context) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, json.loads(error.read())["message"]) from None

    def apply(self, document: Object, manager: str = "test") -> None:
        """Server-side apply of a document of any kind, with force."""
        version, kind = document["apiVersion"], document["kind"]
        root = f"/api/{version}" if version == "v1" else f"/apis/{version}"
        resources = self.call("GET", root)["resources"]
        [found] = [one for one in resources if one["kind"] == kind and "/" not in one["name"]]
        metadata = document["metadata"]
        namespace = f"/namespaces/{metadata.get('namespace', 'default')}" if found["namespaced"] else ""
        path = f"{root}{namespace}/{found['name']}/{metadata['name']}?fieldManager={manager}&force=true"
        self.call("PATCH", path, document, "application/apply-patch+yaml")

    def _start(self) -> None:
        run = self.directory
        client, peer = free_port(), free_port()
        self._run(
            "etcd",
            [
                str(components.program_path("etcd")),
                f"--data-dir={run}/etcd",
                f"--listen-client-urls=http://127.0.0.1:{client}",
                f"--advertise-client-urls=http://127.0.0.1:{client}",
                f"--listen-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-cluster=default=http://127.0.0.1:{peer}",
                "--unsafe-no-fsync",
            ],
        )
        subprocess.run(
            ["openssl", "genrsa", "-out", str(run / "sa.key"), "2048"],
            check=True,
            capture_output=True,
            timeout=60,
        )
        (run / "tokens.csv").write_text(
            f"admin-token,admin,admin,system:masters\noperator-token,{OPERATOR},operator,system:authenticated\n"
        )
        self.port = free_port()
        self._run(
            "apiserver",
            [
                str(API_SERVER),
                f"--etcd-servers=http://127.0.0.1:{client}",
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                f"--secure-port={self.port}",
                f"--cert-dir={run}/certs",
                f"--token-auth-file={run}/tokens.csv",
                "--authorization-mode=RBAC",
                f"--service-account-key-file={run}/sa.key",
                f"--service-account-signing-key-file={run}/sa.key",
                "--service-account-issuer=https://kubernetes.default.svc",
                "--service-cluster-ip-range=10.255.0.0/24",
                "--disable-admission-plugins=ServiceAccount",
                "--endpoint-reconciler-type=none",
            ],
        )

        def is_ready() -> bool:
            self._check()
            with suppress(OSError, ValueError):
                context = ssl.create_default_context(cafile=str(run / "certs" / "apiserver.crt"))
                url = f"https://127.0.0.1:{self.port}/readyz"
                request = urllib.request.Request(url, headers={"Authorization": "Bearer admin-token"})
                with urllib.request.urlopen(request, timeout=5, context=context) as answer:
                    return bool(answer.status == 200)
            return False

        wait_until(is_ready, "kube-apiserver", seconds=120)
        wait_until(
            lambda: self.call("GET", "/api/v1/namespaces/default"), "the default namespace", seconds=60
        )

    def _run(self, name: str, command: list[str]) -> None:
        log = (self.directory / f"{name}.log").open("wb")
        self._logs.append(log)
        self._processes.append(
            subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=log, start_new_session=True)
        )

    def _check(self) -> None:
        for process, log in zip(self._processes, self._logs, strict=True):
            if process.poll() is not None:
                raise RuntimeError(f"{log.name} ended:\n{Path(log.name).read_text()[-2000:]}")


class ApiError(Exception):
    """A refusal of the API server."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


class OperatorProcess:
    """`scorer operator` as a process."""

    def __init__(self, kubeconfig: Path, namespace: str, directory: Path, *, interval: float = 0.5) -> None:
        self._log = directory / f"operator-{namespace}-{free_port()}.log"
        self._command = [
            sys.executable,
            *("-m", "scorer.cli", "operator", "--namespace", namespace),
            *("--kubeconfig", str(kubeconfig), "--interval", str(interval)),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> OperatorProcess:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=environment(), start_new_session=True
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)

    def kill(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(20)

    @property
    def log(self) -> str:
        return self._log.read_text()


class FreezingProxy:
    """A TCP proxy. `freeze` stops all connections of this moment without closing them; later ones work."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._open: list[tuple[socket.socket, socket.socket, threading.Event]] = []
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self._accept = threading.Thread(target=self._serve)

    def __enter__(self) -> FreezingProxy:
        self._accept.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._accept.join(10)
        self._listener.close()
        with self._lock:
            for left, right, _ in self._open:
                left.close()
                right.close()
        for thread in self._threads:
            thread.join(10)

    def freeze(self) -> int:
        """Stop all connections of this moment. Return their number."""
        with self._lock:
            frozen = [one for one in self._open if not one[2].is_set()]
            for _, _, stop in frozen:
                stop.set()
            return len(frozen)

    def _serve(self) -> None:
        self._listener.settimeout(0.1)
        while not self._closing.is_set():
            try:
                left, _ = self._listener.accept()
            except TimeoutError:
                continue
            right = socket.create_connection(("127.0.0.1", self._target), 10)
            stop = threading.Event()
            with self._lock:
                self._open.append((left, right, stop))
            for pair in ((left, right), (right, left)):
                thread = threading.Thread(target=self._copy, args=(*pair, stop), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _copy(self, source: socket.socket, target: socket.socket, stop: threading.Event) -> None:
        source.settimeout(0.1)
        while not self._closing.is_set() and not stop.is_set():
            try:
                data = source.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                return
            if stop.is_set():
                return
            if not data:
                with suppress(OSError):
                    target.shutdown(socket.SHUT_WR)
                return
            with suppress(OSError):
                target.settimeout(None)
                target.sendall(data)


@contextmanager
def cluster() -> Iterator[KubeCluster]:
    """A cluster, or a skip if a part is not installed."""
    require()
    with KubeCluster() as running:
        yield running


def kustomize(directory: Path) -> list[Object]:
    """Return the documents that `kustomize build` makes of a directory."""
    if not KUSTOMIZE.exists():
        pytest.skip("kustomize is not installed; `make kube` builds it")
    done = subprocess.run(
        [str(KUSTOMIZE), "build", str(directory)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "HOME": str(directory)},
    )
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]
