"""Tests of a pass over a server, with a cluster in memory; test_operator_kube.py has a real API server."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from manifests import MANIFESTS, documents

from scorer.errors import ClusterError
from scorer.operator import names
from scorer.operator.cluster import Cluster, owned_by
from scorer.operator.names import Object
from scorer.operator.reconcile import ServerReconciler

SHIP = {"image": "scorer-ship:0.1.0", "settings": {"delta": {"url": "s3://decisions/lake"}}}
Key = tuple[str, str]


class MemoryCluster(Cluster):
    """Objects in a dictionary. It sets uids and generations as the API server does."""

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.certificates = False
        self.writes: list[str] = []
        self.refusal: ClusterError | None = None

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        return copy.deepcopy(self.objects.get((kind, name)))

    def list(self, kind: str, namespace: str, labels: Any = None) -> list[Object]:
        wanted = (labels or {}).items()
        return [
            copy.deepcopy(one)
            for (of, _), one in sorted(self.objects.items())
            if of == kind and wanted <= one["metadata"].get("labels", {}).items()
        ]

    def apply(self, wanted: Object, *, leave_replicas: bool = False) -> tuple[Object, str]:
        if self.refusal is not None:
            raise self.refusal
        key = wanted["kind"], wanted["metadata"]["name"]
        before = self.objects.get(key)
        merged = _merged(copy.deepcopy(before or {}), wanted)
        if merged != before:
            self.writes.append(f"apply {key[0]} {key[1]}")
            self.objects[key] = merged
            merged["metadata"]["generation"] = merged["metadata"].get("generation", 0) + 1
        return merged, ""

    def create(self, wanted: Object) -> None:
        self.writes.append(f"create {wanted['kind']} {wanted['metadata']['name']}")
        self.objects.setdefault((wanted["kind"], wanted["metadata"]["name"]), copy.deepcopy(wanted))

    def merge(self, kind: str, namespace: str, name: str, change: Object, *, part: str = "") -> None:
        if (kind, name) in self.objects:
            self.writes.append(f"merge {kind} {name} {part}".strip())
            self.objects[kind, name] = _merged(self.objects[kind, name], change)

    def delete(self, kind: str, namespace: str, name: str) -> None:
        self.writes.append(f"delete {kind} {name}")
        self.objects.pop((kind, name), None)

    def has_cert_manager(self) -> bool:
        return self.certificates


def _merged(before: Object, change: Object) -> Object:
    result = copy.deepcopy(before)
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result


class World:
    """A cluster with the server and the checkpoints of the example, and its reconciler."""

    def __init__(self, **changes: Any) -> None:
        self.cluster = MemoryCluster()
        self.events: list[tuple[str, str]] = []
        self.reconciler = ServerReconciler(self.cluster, lambda: "2026-11-26T12:00:00Z")
        for at, one in enumerate(documents(MANIFESTS / "operator" / "example.yaml")):
            one["metadata"] |= {"namespace": "default", "uid": f"uid-{at}", "generation": 1}
            self.cluster.objects[one["kind"], one["metadata"]["name"]] = one
        self.change(**changes)

    def change(self, **changes: Any) -> None:
        self.cluster.merge("ScorerServer", "default", "scorer", {"spec": changes})
        self.cluster.writes.clear()

    def run(self) -> list[str]:
        """Do one pass and return what it wrote."""
        self.cluster.writes.clear()
        self.reconciler.server("default", "scorer", self._report)
        return self.cluster.writes

    def drain(self) -> bool:
        self.cluster.writes.clear()
        metadata = self.cluster.objects["ScorerServer", "scorer"]["metadata"]
        metadata["deletionTimestamp"] = "2026-11-26T12:00:00Z"
        return self.reconciler.drained("default", "scorer", self._report)

    def of(self, kind: str, name: str = "scorer") -> Object:
        return self.cluster.objects[kind, name]

    @property
    def status(self) -> Object:
        return dict(self.of("ScorerServer").get("status", {}))

    def start(self, ordinal: int) -> None:
        """Create the pod and the claim of a replica. The pod has no address, so its metrics are not read."""
        template = copy.deepcopy(self.of("StatefulSet")["spec"]["template"])
        metadata = {**template["metadata"], "name": f"scorer-{ordinal}", "namespace": "default"}
        ready = [{"type": "Ready", "status": "True"}]
        status = {"phase": "Pending", "conditions": ready}
        self.cluster.objects["Pod", f"scorer-{ordinal}"] = {
            "kind": "Pod", "metadata": metadata, "spec": template["spec"], "status": status
        }  # fmt: skip
        claim = names.claim_name("scorer", ordinal)
        labels = names.selector("scorer")
        self.cluster.objects.setdefault(
            ("PersistentVolumeClaim", claim),
            {"kind": "", "metadata": {"name": claim, "namespace": "default", "labels": labels}},
        )

    def stop(self, ordinal: int) -> None:
        del self.cluster.objects["Pod", f"scorer-{ordinal}"]

    def finish(self, job: str, kind: str) -> None:
        conditions = [{"type": kind, "status": "True", "message": "stated"}]
        self.cluster.merge("Job", "default", job, {"status": {"conditions": conditions}})

    def _report(self, reason: str, message: str) -> None:
        assert "\n" not in message
        self.events.append((reason, message))


def kinds(world: World) -> set[str]:
    return {kind for (kind, _), one in world.cluster.objects.items() if owned_by(one, "uid-0")}


def test_a_second_pass_writes_nothing() -> None:
    world = World()
    first = world.run()
    assert [one for one in first if one.startswith("apply")][-1] == "apply StatefulSet scorer"
    assert kinds(world) == {
        "ServiceAccount",
        "ConfigMap",
        "Service",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "StatefulSet",
    }
    assert world.run() == []
    assert world.events == []


def test_the_certificate_appears_with_cert_manager_and_goes_with_an_own_secret() -> None:
    world = World()
    world.run()
    world.cluster.certificates = True
    assert "apply Certificate scorer-tls" in world.run()
    world.change(tls={"secretName": "ours"})
    assert "delete Certificate scorer-tls" in world.run()


def test_a_refused_spec_changes_nothing_but_the_status() -> None:
    world = World()
    world.run()
    before = copy.deepcopy(world.cluster.objects)
    world.change(image="scorer:0.2.0")
    world.cluster.merge("ScorerCheckpoint", "default", "fraud.checkout", {"spec": {"settings": {"tier": 9}}})
    written = world.run()
    assert set(written) == {
        "merge ScorerServer scorer status",
        "merge ScorerCheckpoint fraud.checkout status",
        "merge ScorerCheckpoint action.authorise status",
    }
    assert world.of("StatefulSet") == before["StatefulSet", "scorer"]
    reason = "ScorerCheckpoint fraud.checkout: tier: 9 is out of range; it must be at most 3"
    assert (world.status["phase"], world.status["lastError"]) == ("Invalid", reason)
    assert world.events == [("Invalid", reason)]
    world.run()
    assert len(world.events) == 1, "the same reason is reported once"


def test_a_foreign_object_is_not_taken_over() -> None:
    world = World()
    foreign = {"kind": "Service", "metadata": {"name": "scorer", "namespace": "default"}}
    world.cluster.objects["Service", "scorer"] = copy.deepcopy(foreign)
    assert not any(one.startswith("apply") for one in world.run())
    assert world.of("Service") == foreign
    assert world.status["lastError"].startswith(
        "Service scorer exists and belongs to something else; delete it"
    )


def test_a_refusal_of_the_api_is_the_last_error_and_an_outage_is_not() -> None:
    world = World()
    world.cluster.refusal = ClusterError("services is forbidden: no right to patch", 403)
    world.run()
    assert world.status["lastError"] == "the Kubernetes API refuses: services is forbidden: no right to patch"
    for status in (0, 503):
        world.cluster.refusal = ClusterError("away", status)
        with pytest.raises(ClusterError):
            world.run()


def test_settings_of_earlier_versions_stay_until_no_pod_needs_them() -> None:
    world = World()
    world.run()
    for ordinal in (0, 1):
        world.start(ordinal)
    [first] = [name for kind, name in world.cluster.objects if kind == "ConfigMap"]
    world.cluster.merge("ScorerCheckpoint", "default", "fraud.checkout", {"spec": {"p99Ms": 20}})
    world.run()
    for ordinal in (1, 0):
        assert world.status["phase"] == "Updating"
        live = world.of("StatefulSet")
        live["status"] = {"observedGeneration": live["metadata"]["generation"]}
        world.run()
        assert ("ConfigMap", first) in world.cluster.objects
        world.start(ordinal)
    world.run()
    assert ("ConfigMap", first) not in world.cluster.objects
    assert world.status["phase"] == "Ready"


def test_a_checkpoint_of_a_missing_server_has_a_reason() -> None:
    world = World()
    del world.cluster.objects["ScorerServer", "scorer"]
    world.reconciler.server("default", "scorer", world._report)
    status = world.of("ScorerCheckpoint", "fraud.checkout")["status"]
    assert status["lastError"] == "ScorerServer scorer does not exist in namespace default; create it"


def test_the_volume_of_a_removed_replica_is_shipped_once() -> None:
    world = World(ship=SHIP)
    world.run()
    for ordinal in (0, 1):
        world.start(ordinal)
    world.change(replicas=1)
    assert not any("Job" in one for one in world.run()), "the replica still writes"
    world.stop(1)
    assert "create Job scorer-ship-1" in world.run()
    assert world.status["volumes"][0]["state"] == "Shipping"
    world.finish("scorer-ship-1", "Failed")
    world.run()
    assert world.status["volumes"][0]["reason"].startswith("Job scorer-ship-1 failed: stated")
    world.finish("scorer-ship-1", "Complete")
    world.run()
    assert not any("Job" in one for one in world.run()), "it is not shipped again"
    assert world.status["volumes"][0]["state"] == "Shipped"
    world.change(replicas=2)
    world.run()
    annotations = world.of("PersistentVolumeClaim", "data-scorer-1")["metadata"]["annotations"]
    assert names.SHIPPED_ANNOTATION not in annotations


def drained(world: World, results: dict[int, str]) -> None:
    """Delete a server with two replicas, as the controllers of Kubernetes would take part in it."""
    world.run()
    for ordinal in (0, 1):
        world.start(ordinal)
    for ordinal in (1, 0):
        assert not world.drain()
        assert world.of("StatefulSet")["spec"]["replicas"] == ordinal
        assert world.run() == [], "a pass does not undo the drain"
        assert not world.drain()
        world.stop(ordinal)
    if results:
        assert not world.drain()
        for ordinal, kind in results.items():
            world.finish(f"scorer-final-{ordinal}", kind)
    assert world.drain()


@pytest.mark.parametrize(("policy", "left"), [("Retain", {0, 1}), ("DeleteShipped", {1}), ("Discard", set())])
def test_a_deletion_keeps_volumes_with_unshipped_records(policy: str, left: set[int]) -> None:
    world = World(ship=SHIP, storage={"whenDeleted": policy})
    drained(world, {} if policy == "Discard" else {0: "Complete", 1: "Failed"})
    claims = {name for kind, name in world.cluster.objects if kind == "PersistentVolumeClaim"}
    assert claims == {names.claim_name("scorer", ordinal) for ordinal in left}
    for claim in claims:
        assert world.of("PersistentVolumeClaim", claim)["metadata"]["annotations"][names.KEPT_ANNOTATION]
    assert kinds(world) == set()
    kept = [message for reason, message in world.events if reason == "VolumeKept"]
    assert len(kept) == len(left)


def test_an_earlier_job_proves_nothing_about_a_deletion() -> None:
    """The replica may have written after the Job of an earlier removal."""
    world = World(ship=SHIP, storage={"whenDeleted": "DeleteShipped"})
    world.run()
    world.start(0)
    claim = world.of("PersistentVolumeClaim", "data-scorer-0")["metadata"]
    claim["annotations"] = {names.SHIPPED_ANNOTATION: "true"}
    job = {
        "kind": "Job",
        "metadata": {"name": "scorer-ship-0", "ownerReferences": [names.owner("scorer", "uid-0")]},
    }
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    world.cluster.objects["Job", "scorer-ship-0"] = job
    world.stop(0)
    for _ in range(5):
        assert not world.drain()
    assert ("PersistentVolumeClaim", "data-scorer-0") in world.cluster.objects
    assert ("Job", "scorer-final-0") in world.cluster.objects


def test_a_server_that_became_invalid_keeps_its_volumes() -> None:
    world = World(ship=SHIP, storage={"whenDeleted": "DeleteShipped"})
    world.run()
    world.start(0)
    world.stop(0)
    world.change(image=5)
    for _ in range(3):
        done = world.drain()
    assert done
    annotations = world.of("PersistentVolumeClaim", "data-scorer-0")["metadata"]["annotations"]
    assert "the spec of the server is not valid" in annotations[names.KEPT_ANNOTATION]
