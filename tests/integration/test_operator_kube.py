"""The operator against a real kube-apiserver and etcd.

There is no kubelet and no controller. The tests create and delete the pods that the StatefulSet asks for, as
the controllers would, and set the results of Jobs.
"""

from __future__ import annotations

import copy
import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import kube_cluster
import pytest
import yaml
from kube_cluster import ApiError, FreezingProxy, KubeCluster, OperatorProcess, kustomize
from manifests import MANIFESTS, documents
from servers import SCORE, start_server
from servers import settings as server_settings
from waiting import wait_until

from scorer.operator import names
from scorer.operator.names import Object
from scorer.registry import Registry

pytestmark = pytest.mark.timeout(300)

OURS = "/apis/scorer.internal/v1alpha1"
PATIENCE = 90.0
SHIP = {"image": "scorer-ship:0.1.0", "settings": {"delta": {"url": "s3://decisions/lake"}}}

METRICS = """\
scorer_pressure 1
scorer_registry_reachable 1
scorer_log_next_sequence 10
scorer_log_shipped_sequence 4
scorer_lane_share{checkpoint="fraud.checkout",lane="answer-0",bundle="sha256:aa",name="fraud"} 1
"""


@pytest.fixture(scope="module")
def kube() -> Iterator[KubeCluster]:
    with kube_cluster.cluster() as running:
        for file in ("crds.yaml", "operator.yaml"):
            for document in documents(MANIFESTS / "operator" / file):
                running.apply(document)
        wait_until(lambda: running.call("GET", f"{OURS}/scorerservers"), "the resources", seconds=60)
        yield running


class Team:
    """A namespace with a server and its checkpoint."""

    def __init__(self, kube: KubeCluster, namespace: str) -> None:
        self.kube, self.namespace = kube, namespace
        kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        server, checkpoint, _ = documents(MANIFESTS / "operator" / "example.yaml")
        self._server, self._checkpoint = server, checkpoint

    def path(self, kind: str, name: str = "", part: str = "") -> str:
        roots = {
            "pods": "/api/v1",
            "services": "/api/v1",
            "configmaps": "/api/v1",
            "persistentvolumeclaims": "/api/v1",
            "events": "/api/v1",
            "statefulsets": "/apis/apps/v1",
            "jobs": "/apis/batch/v1",
            "horizontalpodautoscalers": "/apis/autoscaling/v2",
            "poddisruptionbudgets": "/apis/policy/v1",
            "networkpolicies": "/apis/networking.k8s.io/v1",
            "serviceaccounts": "/api/v1",
            "certificates": "/apis/cert-manager.io/v1",
        }
        path = f"{roots.get(kind, OURS)}/namespaces/{self.namespace}/{kind}"
        return "/".join(filter(None, [path, name, part]))

    def get(self, kind: str, name: str = "scorer") -> Any:
        """An object, or None."""
        try:
            return self.kube.call("GET", self.path(kind, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, kind: str) -> list[Object]:
        return list(self.kube.call("GET", self.path(kind))["items"])

    def delete(self, kind: str, name: str, grace: int | None = None) -> None:
        query = "" if grace is None else f"?gracePeriodSeconds={grace}"
        self.kube.call("DELETE", self.path(kind, name) + query)

    def patch(self, kind: str, name: str, change: Object, part: str = "", manager: str = "somebody") -> None:
        path = f"{self.path(kind, name, part)}?fieldManager={manager}"
        self.kube.call("PATCH", path, change, "application/merge-patch+json")

    def create(self, **changes: Any) -> None:
        """Create the server, with changes of its spec, and its checkpoint."""
        server, checkpoint = copy.deepcopy(self._server), copy.deepcopy(self._checkpoint)
        for one in (server, checkpoint):
            one["metadata"]["namespace"] = self.namespace
        server["spec"] = {k: v for k, v in {**server["spec"], **changes}.items() if v is not None}
        self.kube.call("POST", self.path("scorerservers"), server)
        self.kube.call("POST", self.path("scorercheckpoints"), checkpoint)

    def status(self, kind: str = "scorerservers", name: str = "scorer") -> Object:
        return (self.get(kind, name) or {}).get("status", {})

    def run_pod(self, ordinal: int, port: int) -> None:
        """Create the pod and the volume of a replica, as the StatefulSet controller and the kubelet do."""
        template = copy.deepcopy(self.get("statefulsets")["spec"]["template"])
        name = f"scorer-{ordinal}"
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": name}}
        pod["spec"] = template["spec"]
        claim = names.claim_name("scorer", ordinal)
        pod["spec"]["volumes"].append({"name": "data", "persistentVolumeClaim": {"claimName": claim}})
        [metrics] = [one for one in pod["spec"]["containers"][0]["ports"] if one["name"] == "metrics"]
        metrics["containerPort"] = port
        if self.get("persistentvolumeclaims", claim) is None:
            spec = copy.deepcopy(self.get("statefulsets")["spec"]["volumeClaimTemplates"][0]["spec"])
            metadata = {"name": claim, "labels": names.selector("scorer")}
            self.kube.call("POST", self.path("persistentvolumeclaims"), {"metadata": metadata, "spec": spec})
        self.kube.call("POST", self.path("pods"), pod)
        ready = [{"type": "Ready", "status": "True"}]
        status = {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "podIPs": [{"ip": "127.0.0.1"}],
            "conditions": ready,
        }
        self.patch("pods", name, {"status": status}, "status")

    def finish_job(self, name: str, *, succeeded: bool) -> None:
        """Set the result of a Job, as the Job controller does."""
        now = "2026-11-26T12:00:00Z"
        kinds = ("SuccessCriteriaMet", "Complete") if succeeded else ("FailureTarget", "Failed")
        reason = "CompletionsReached" if succeeded else "BackoffLimitExceeded"
        conditions = [
            {
                "type": kind,
                "status": "True",
                "reason": reason,
                "message": "stated by the test",
                "lastTransitionTime": now,
            }
            for kind in kinds
        ]
        status: Object = {"conditions": conditions, "startTime": now}
        status |= {"completionTime": now, "succeeded": 1} if succeeded else {"failed": 4}
        self.patch("jobs", name, {"status": status}, "status")


@pytest.fixture
def team(kube: KubeCluster, request: pytest.FixtureRequest) -> Team:
    return Team(kube, request.node.name.replace("_", "-").removeprefix("test-")[:50].strip("-"))


@contextmanager
def metrics_server(text: str = METRICS) -> Iterator[int]:
    """Serve metrics as a replica does; gives the port."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        thread.join(30)
        server.server_close()


@contextmanager
def operator(team: Team, *, port: int | None = None) -> Iterator[OperatorProcess]:
    """The operator, with the rights of deploy/kubernetes/operator and no others."""
    kubeconfig = team.kube.kubeconfig("operator-token", port)
    with OperatorProcess(kubeconfig, team.namespace, team.kube.directory) as process:
        try:
            yield process
        except BaseException:
            print(process.log[-8000:])
            raise


def until(condition: Callable[[], Any], what: str) -> Any:
    return wait_until(condition, what, seconds=PATIENCE)


def test_the_schemas_refuse_nonsense(team: Team) -> None:
    team.create()
    refused: list[tuple[Object, str]] = [
        ({"autoscaling": {"maxReplicas": 4}}, "replicas and autoscaling are both set; remove one of them"),
        (
            {"replicas": None, "autoscaling": {"minReplicas": 4, "maxReplicas": 2}},
            "maxReplicas is below minReplicas",
        ),
        ({"role": "shadow"}, "role cannot be changed"),
        ({"storage": {"size": "60Gi"}}, "storage.size cannot be changed"),
        ({"storage": {"storageClassName": "fast"}}, "storage.storageClassName cannot be changed"),
        ({"storage": {"whenDeleted": "DeleteShipped"}}, "ship is not set, so nothing is shipped"),
        ({"replicas": 0}, "should be greater than or equal to 1"),
        ({"image": "a b"}, "spec.image"),
        ({"resources": {"requests": {"cpu": "two"}}}, "spec.resources.requests.cpu"),
    ]
    for change, reason in refused:
        with pytest.raises(ApiError) as caught:
            team.patch("scorerservers", "scorer", {"spec": change})
        assert caught.value.status == 422
        assert reason in caught.value.message
    for change, reason in [
        ({"kind": "action"}, "server, checkpoint and kind cannot be changed"),
        ({"fallback": {"action": "a"}}, "fallback must have decision and score for kind score"),
        ({"alias": "nonsense"}, "spec.alias"),
        ({"p99Ms": 0}, "spec.p99Ms"),
    ]:
        with pytest.raises(ApiError) as caught:
            team.patch("scorercheckpoints", "fraud.checkout", {"spec": change})
        assert reason in caught.value.message
    named = {"metadata": {"name": "scorer.live"}, "spec": {"image": "a"}, "kind": "ScorerServer"}
    with pytest.raises(ApiError, match=r"metadata\.name must have at most 40"):
        team.kube.call("POST", team.path("scorerservers"), {**named, "apiVersion": names.API_VERSION})


def test_a_server_becomes_its_objects_and_a_status(team: Team, tmp_path: Path, registry: Registry) -> None:
    """A real server stands for the first replica, so that the status shows what it really reports."""
    digest = registry.resolve("fraud-checkout@live").digest
    with start_server(tmp_path, server_settings(SCORE)) as server, metrics_server() as port, operator(team):
        team.create()
        until(lambda: team.get("statefulsets"), "the StatefulSet")
        until(lambda: team.status().get("phase") == "Updating", "a status without pods")
        for kind in ("services", "poddisruptionbudgets", "networkpolicies", "serviceaccounts"):
            [owner] = team.get(kind)["metadata"]["ownerReferences"]
            assert owner["uid"] == team.get("scorerservers")["metadata"]["uid"]
        assert team.get("statefulsets")["spec"]["replicas"] == 2
        team.run_pod(0, int(server.serving["metrics"].rpartition(":")[2]))
        team.run_pod(1, port)
        status = until(
            lambda: (one := team.status()).get("ready") == "2/2" and len(one["bundles"]) == 2 and one, ""
        )
        assert status["phase"] == "Ready"
        assert status["observedGeneration"] == team.get("scorerservers")["metadata"]["generation"]
        assert status["pressure"] == 1
        assert status["unshippedRecords"] >= 6
        assert {one["bundle"] for one in status["bundles"]} == {"sha256:aa", digest}
        ready = {one["type"]: one["status"] for one in status["conditions"]}
        assert ready == {"Ready": "True", "Accepted": "True"}
        until(
            lambda: team.status("scorercheckpoints", "fraud.checkout").get("state") == "Mixed", "two bundles"
        )
        assert team.status("scorercheckpoints", "fraud.checkout")["serving"] == "1/2"
        # What `kubectl get` prints.
        table = _table(team)
        assert table["Ready"] == "2/2" and table["Phase"] == "Ready"


def _table(team: Team) -> Object:
    import ssl

    context = ssl.create_default_context(cafile=str(team.kube.directory / "certs" / "apiserver.crt"))
    request = urllib.request.Request(
        f"https://127.0.0.1:{team.kube.port}{team.path('scorerservers')}",
        headers={
            "Authorization": "Bearer admin-token",
            "Accept": "application/json;as=Table;v=v1;g=meta.k8s.io",
        },
    )
    with urllib.request.urlopen(request, timeout=20, context=context) as answer:
        table = json.loads(answer.read())
    columns = [one["name"] for one in table["columnDefinitions"]]
    return dict(zip(columns, table["rows"][0]["cells"], strict=True))


def test_an_upgrade_changes_the_pods_and_nonsense_changes_nothing(team: Team) -> None:
    with operator(team), metrics_server() as port:
        team.create()
        first = until(lambda: team.get("statefulsets"), "the StatefulSet")
        for ordinal in (0, 1):
            team.run_pod(ordinal, port)
        until(lambda: team.status().get("phase") == "Ready", "ready")
        team.patch("scorerservers", "scorer", {"spec": {"image": "scorer:0.2.0"}})
        image = lambda: team.get("statefulsets")["spec"]["template"]["spec"]["containers"][0]["image"]  # noqa: E731
        until(lambda: image() == "scorer:0.2.0", "the new image")
        status = until(lambda: (one := team.status())["phase"] == "Updating" and one, "an update")
        assert (status["updatedReplicas"], status["ready"]) == (0, "2/2")
        # Settings of a checkpoint become another ConfigMap, and pods that restart meanwhile keep theirs.
        team.patch("scorercheckpoints", "fraud.checkout", {"spec": {"p99Ms": 20}})
        volume = lambda one: one["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]  # noqa: E731
        until(lambda: volume(team.get("statefulsets")) != volume(first), "new settings")
        assert (
            "p99_ms = 20" in team.get("configmaps", volume(team.get("statefulsets")))["data"]["scorer.toml"]
        )
        assert team.get("configmaps", volume(first)) is not None
        # After all pods have them, the earlier settings are removed.
        for ordinal in (1, 0):
            team.delete("pods", f"scorer-{ordinal}", grace=0)
            team.run_pod(ordinal, port)
        generation = team.get("statefulsets")["metadata"]["generation"]
        team.patch(
            "statefulsets", "scorer", {"status": {"observedGeneration": generation, "replicas": 2}}, "status"
        )
        until(lambda: team.get("configmaps", volume(first)) is None, "the earlier settings are removed")
        until(lambda: team.status()["phase"] == "Ready", "ready")
        # Nonsense that the schema cannot know is refused by the operator, and what runs stays.
        before = team.get("statefulsets")["spec"]
        team.patch("scorercheckpoints", "fraud.checkout", {"spec": {"settings": {"tier": 99}}})
        status = until(lambda: (one := team.status())["phase"] == "Invalid" and one, "refused")
        assert (
            status["lastError"]
            == "ScorerCheckpoint fraud.checkout: tier: 99 is out of range; it must be at most 3"
        )
        accepted = {one["type"]: one["status"] for one in status["conditions"]}
        assert accepted == {"Ready": "True", "Accepted": "False"}
        assert team.get("statefulsets")["spec"] == before
        assert team.status("scorercheckpoints", "fraud.checkout")["state"] == "Invalid"
        until(lambda: any(one["reason"] == "Invalid" for one in team.list("events")), "an event")
        team.patch("scorercheckpoints", "fraud.checkout", {"spec": {"settings": None}})
        until(lambda: team.status()["phase"] == "Ready", "accepted again")


def test_what_others_change_is_set_back_and_what_they_own_is_refused(team: Team) -> None:
    service = {"metadata": {"name": "scorer"}, "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}}
    team.kube.call("POST", team.path("services"), service)
    with operator(team):
        team.create()
        status = until(lambda: (one := team.status()).get("phase") == "Invalid" and one, "a conflict")
        assert status["lastError"] == (
            "Service scorer exists and belongs to something else; delete it, or give the server another name"
        )
        assert team.get("statefulsets") is None, "nothing is created before the conflict is solved"
        team.delete("services", "scorer")
        until(lambda: team.get("statefulsets"), "the StatefulSet")
        until(lambda: team.status()["lastError"] == "", "no error")
        container = team.get("statefulsets")["spec"]["template"]["spec"]["containers"][0]
        changed = {
            "spec": {"replicas": 7, "template": {"spec": {"containers": [{**container, "image": "other:1"}]}}}
        }
        team.patch("statefulsets", "scorer", changed)
        until(lambda: team.get("statefulsets")["spec"]["replicas"] == 2, "the replicas")
        assert (
            team.get("statefulsets")["spec"]["template"]["spec"]["containers"][0]["image"] == "scorer:0.1.0"
        )
        restored = lambda: [one for one in team.list("events") if one["reason"] == "Restored"]  # noqa: E731
        event = until(restored, "an event")[0]
        assert event["message"].startswith("StatefulSet scorer: changed by others: ")
        assert "spec.replicas" in event["message"]
        assert '"somebody"' in event["message"]
        # Labels and annotations that the operator does not name stay.
        team.patch("statefulsets", "scorer", {"metadata": {"annotations": {"owner": "payments"}}})
        team.delete("poddisruptionbudgets", "scorer")
        until(lambda: team.get("poddisruptionbudgets"), "the deleted object")
        assert team.get("statefulsets")["metadata"]["annotations"]["owner"] == "payments"


def test_the_autoscaler_keeps_its_number(team: Team) -> None:
    with operator(team):
        team.create(replicas=None, autoscaling={"minReplicas": 2, "maxReplicas": 6})
        until(lambda: team.get("horizontalpodautoscalers"), "the autoscaler")
        assert team.get("statefulsets")["spec"]["replicas"] == 2
        path = team.path("statefulsets", "scorer", "scale") + "?fieldManager=kube-controller-manager"
        team.kube.call("PATCH", path, {"spec": {"replicas": 5}}, "application/merge-patch+json")
        team.patch("scorerservers", "scorer", {"spec": {"image": "scorer:0.2.0"}})
        until(lambda: _image(team) == "scorer:0.2.0", "an upgrade")
        assert team.get("statefulsets")["spec"]["replicas"] == 5
        team.patch("scorerservers", "scorer", {"spec": {"autoscaling": None, "replicas": 3}})
        until(lambda: team.get("statefulsets")["spec"]["replicas"] == 3, "a fixed number")
        until(lambda: team.get("horizontalpodautoscalers") is None, "no autoscaler")


def _image(team: Team) -> str:
    return str(team.get("statefulsets")["spec"]["template"]["spec"]["containers"][0]["image"])


def test_certificates_are_requested_where_cert_manager_is(team: Team) -> None:
    with operator(team):
        team.create()
        until(lambda: team.get("statefulsets"), "the StatefulSet")
        _define_certificates(team.kube)
        certificate = until(lambda: team.get("certificates", "scorer-tls"), "the Certificate")
        [manifest] = [
            one["spec"]
            for one in documents(MANIFESTS / "cert-manager/certificates.yaml")
            if one["kind"] == "Certificate" and one["metadata"]["name"] == "scorer-tls"
        ]
        assert certificate["spec"]["uris"] == manifest["uris"]
        assert f"scorer.{team.namespace}.svc" in certificate["spec"]["dnsNames"]
        team.patch("scorerservers", "scorer", {"spec": {"tls": {"secretName": "ours"}}})
        until(lambda: team.get("certificates", "scorer-tls") is None, "no Certificate beside an own Secret")
        secrets = lambda: [  # noqa: E731
            one["secret"]["secretName"]
            for one in team.get("statefulsets")["spec"]["template"]["spec"]["volumes"]
            if "secret" in one
        ]
        assert secrets() == ["ours"]


def _define_certificates(kube: KubeCluster) -> None:
    """The API of cert-manager with a schema that accepts everything; there is no controller of it."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    kube.apply(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "certificates.cert-manager.io"},
            "spec": {
                "group": "cert-manager.io",
                "scope": "Namespaced",
                "names": {"kind": "Certificate", "plural": "certificates", "singular": "certificate"},
                "versions": [version],
            },
        }
    )


def test_a_stalled_watch_and_a_killed_operator_lose_no_change(team: Team) -> None:
    with FreezingProxy(team.kube.port) as proxy:
        with operator(team, port=proxy.port) as process:
            team.create()
            until(lambda: team.get("statefulsets"), "the StatefulSet")
            assert proxy.freeze() >= 2, "the watches of both resources"
            team.patch("scorerservers", "scorer", {"spec": {"image": "scorer:0.2.0"}})
            until(lambda: _image(team) == "scorer:0.2.0", "the change without a working watch")
            process.kill()
            # While no operator runs, the spec changes, an object disappears, and a checkpoint is added.
            team.patch("scorerservers", "scorer", {"spec": {"image": "scorer:0.3.0"}})
            team.delete("services", "scorer")
        with operator(team, port=proxy.port):
            until(lambda: _image(team) == "scorer:0.3.0", "the change of the time without an operator")
            until(lambda: team.get("services"), "the deleted object")
            generation = team.get("scorerservers")["metadata"]["generation"]
            until(lambda: team.status()["observedGeneration"] == generation, "the status")


def test_a_removed_replica_is_shipped_and_its_volume_stays(team: Team) -> None:
    with operator(team), metrics_server() as port:
        team.create(replicas=3, ship=SHIP)
        until(lambda: team.get("statefulsets"), "the StatefulSet")
        for ordinal in range(3):
            team.run_pod(ordinal, port)
        until(lambda: team.status().get("phase") == "Ready", "ready")
        team.patch("scorerservers", "scorer", {"spec": {"replicas": 2}})
        until(lambda: team.get("statefulsets")["spec"]["replicas"] == 2, "two replicas")
        assert team.get("jobs", "scorer-ship-2") is None, "the replica still writes"
        team.delete("pods", "scorer-2", grace=0)
        until(lambda: team.get("jobs", "scorer-ship-2"), "the Job")
        until(
            lambda: [one["state"] for one in team.status()["volumes"]] == ["Shipping"], "the volume's state"
        )
        team.finish_job("scorer-ship-2", succeeded=True)
        until(lambda: [one["state"] for one in team.status()["volumes"]] == ["Shipped"], "the volume's state")
        claim = team.get("persistentvolumeclaims", "data-scorer-2")
        assert claim["metadata"]["annotations"][names.SHIPPED_ANNOTATION] == "true"
        # A replica that returns writes to the volume again.
        team.patch("scorerservers", "scorer", {"spec": {"replicas": 3}})
        until(
            lambda: (
                names.SHIPPED_ANNOTATION
                not in team.get("persistentvolumeclaims", "data-scorer-2")["metadata"].get("annotations", {})
            ),
            "the annotation is removed",
        )


def test_a_deleted_server_drains_in_order_and_loses_no_log(team: Team) -> None:
    with operator(team), metrics_server() as port:
        team.create(replicas=2, ship=SHIP, storage={"whenDeleted": "DeleteShipped"})
        until(lambda: team.get("statefulsets"), "the StatefulSet")
        for ordinal in (0, 1):
            team.run_pod(ordinal, port)
        until(lambda: team.status().get("phase") == "Ready", "ready")
        team.delete("scorerservers", "scorer")
        for ordinal in (1, 0):
            until(lambda at=ordinal: team.get("statefulsets")["spec"]["replicas"] == at, f"replica {ordinal}")
            until(lambda at=ordinal: f"scorer-{at} is drained" in team.status()["message"], "the message")
            assert team.status()["phase"] == "Draining"
            assert team.list("jobs") == []
            assert team.get("services") is not None
            team.delete("pods", f"scorer-{ordinal}", grace=0)
        until(lambda: len(team.list("jobs")) == 2, "the Jobs")
        until(lambda: "records of 2 volumes are shipped" in team.status()["message"], "the message")
        assert team.get("scorerservers") is not None
        [container] = team.get("jobs", "scorer-final-0")["spec"]["template"]["spec"]["containers"]
        settings = team.get("jobs", "scorer-final-0")["spec"]["template"]["spec"]["volumes"][0]["configMap"][
            "name"
        ]
        assert "s3://decisions/lake" in team.get("configmaps", settings)["data"]["ship.toml"]
        assert container["command"][-1] == "--once"
        team.finish_job("scorer-final-0", succeeded=True)
        team.finish_job("scorer-final-1", succeeded=False)
        until(lambda: team.get("scorerservers") is None, "the finalizer is removed")
        # The claim of the shipped volume is deleted; only the protection of volumes in use may delay it.
        shipped = team.get("persistentvolumeclaims", "data-scorer-0")
        assert shipped is None or "deletionTimestamp" in shipped["metadata"]
        kept = team.get("persistentvolumeclaims", "data-scorer-1")["metadata"]
        assert "deletionTimestamp" not in kept
        assert (
            "not all of its records are shipped: Job scorer-final-1"
            in kept["annotations"][names.KEPT_ANNOTATION]
        )
        for kind in ("statefulsets", "services", "configmaps", "networkpolicies", "poddisruptionbudgets"):
            assert [one for one in team.list(kind) if one["metadata"]["name"].startswith("scorer")] == [], (
                kind
            )
        reasons = until(
            lambda: {one["reason"] for one in team.list("events")} >= {"VolumeKept", "VolumeDeleted"},
            "the events",
        )
        assert reasons
        status = team.status("scorercheckpoints", "fraud.checkout")
        assert (
            status["lastError"]
            == f"ScorerServer scorer does not exist in namespace {team.namespace}; create it"
        )


def test_the_override_ends_a_deletion_that_waits(team: Team) -> None:
    with metrics_server() as port:
        with operator(team) as process:
            team.create(replicas=1, ship=SHIP)
            until(lambda: team.get("statefulsets"), "the StatefulSet")
            team.run_pod(0, port)
            until(lambda: team.status().get("phase") == "Ready", "ready")
            team.delete("scorerservers", "scorer")
            until(lambda: team.get("statefulsets")["spec"]["replicas"] == 0, "the drain")
            process.kill()
            team.delete("pods", "scorer-0", grace=0)
        # Another operator continues the deletion.
        with operator(team):
            until(lambda: team.get("jobs", "scorer-final-0"), "the Job")
            until(
                lambda: "set spec.storage.whenDeleted to Discard" in team.status()["message"],
                "the way to override",
            )
            team.patch("scorerservers", "scorer", {"spec": {"storage": {"whenDeleted": "Discard"}}})
            until(lambda: team.get("scorerservers") is None, "the finalizer is removed")
            claim = team.get("persistentvolumeclaims", "data-scorer-0")
            assert claim is None or "deletionTimestamp" in claim["metadata"]


def test_the_kustomization_is_the_manifests_and_the_cluster_accepts_it(kube: KubeCluster) -> None:
    built = kustomize(MANIFESTS)
    kinds = {one["kind"] for one in kustomize(MANIFESTS / "operator")}
    assert {"CustomResourceDefinition", "Deployment", "ClusterRole"} <= kinds
    plain = [one for file in ("registry.yaml", "standalone.yaml") for one in documents(MANIFESTS / file)]
    key = lambda one: (one["kind"], one["metadata"]["name"])  # noqa: E731
    assert sorted(built, key=key) == sorted(plain, key=key)
    overlay = kustomize(MANIFESTS.parent / "kustomize" / "example")
    assert {key(one) for one in overlay} == {key(one) for one in plain}
    [stateful_set] = [one for one in overlay if one["kind"] == "StatefulSet"]
    assert stateful_set["spec"]["replicas"] == 3
    kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": "payments"}})
    for one in overlay:
        kube.apply(one)
    text = yaml.safe_dump(overlay)
    assert "registry.example.com/scorer:0.1.0" in text
