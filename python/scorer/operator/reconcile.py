"""Making the cluster agree with the custom resources: one pass, which can be repeated at any time.

A pass reads everything from the API server, so that it depends on no watch and no memory of earlier passes.
"""

from __future__ import annotations

import datetime
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from scorer.errors import ClusterError, OperatorError
from scorer.operator import documents, drain, names, objects
from scorer.operator.cluster import Cluster, owned_by
from scorer.operator.job import job_result, ship_job
from scorer.operator.names import Object
from scorer.operator.scrape import pod_reports
from scorer.operator.spec import CheckpointSpec, ServerSpec, read
from scorer.operator.status import Seen, change_of, checkpoint_status, server_status

_OPTIONAL: Final = ("HorizontalPodAutoscaler", "Certificate")
"""Kinds that a change of the spec can make superfluous."""
_OWNED: Final = (
    "Job",
    "StatefulSet",
    "PodDisruptionBudget",
    "NetworkPolicy",
    "Service",
    "Certificate",
    "ConfigMap",
    "ServiceAccount",
)
"""Kinds that are deleted with the server, in this order."""

Report = Callable[[str, str], None]
"""Publishes an event: a reason in camel case, and a message of one line."""


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class _Checkpoints:
    """The checkpoints of a server: all objects, those that are valid, and why the others are not."""

    resources: list[Object]
    valid: list[documents.Checkpoint]
    problems: Mapping[str, str]

    @property
    def problem(self) -> str:
        return next((f"ScorerCheckpoint {name}: {text}" for name, text in self.problems.items()), "")


@dataclass
class ServerReconciler:
    """Reconciles servers, each by one thread at a time.

    Args:
        cluster: The API server.
        now: Returns the time as RFC 3339.
    """

    cluster: Cluster
    now: Callable[[], str] = _now
    _locks: defaultdict[tuple[str, str], threading.Lock] = field(
        default_factory=lambda: defaultdict(threading.Lock), repr=False
    )

    def server(self, namespace: str, name: str, report: Report) -> None:
        """Make the objects of a server agree with its spec, and write the statuses.

        Raises:
            ClusterError: The API server does not answer, or refuses; a later pass may succeed.
        """
        with self._locks[namespace, name]:
            resource = self.cluster.get("ScorerServer", namespace, name)
            checkpoints = self._checkpoints(namespace, name)
            if resource is None:
                self._write_checkpoints(checkpoints, None, namespace)
                return
            if "deletionTimestamp" in resource["metadata"]:
                return
            self._reconcile(resource, checkpoints, report)

    def drained(self, namespace: str, name: str, report: Report) -> bool:
        """Take the next step of deleting a server. Return whether nothing of it is left but kept volumes.

        Raises:
            ClusterError: The API server does not answer, or refuses; a later pass may succeed.
        """
        with self._locks[namespace, name]:
            resource = self.cluster.get("ScorerServer", namespace, name)
            if resource is None:
                return True
            checkpoints = self._checkpoints(namespace, name)
            observed = self._observe(resource, namespace, name)
            step = drain.next_step(observed)
            seen = Seen(
                resource["metadata"]["generation"],
                observed.replicas or 0,
                pods=pod_reports(self._pods(namespace, name)),
                volumes=drain.lines(step.volumes, name),
                draining=step.message,
            )
            self._write_server(resource, seen)
            self._take(resource, observed, step)
            if not step.is_last:
                return False
            self._settle(resource, step, report)
            self._write_checkpoints(checkpoints, None, namespace)
            return True

    # --- one pass ---

    def _reconcile(self, resource: Object, checkpoints: _Checkpoints, report: Report) -> None:
        namespace, name = resource["metadata"]["namespace"], resource["metadata"]["name"]
        live = self.cluster.get("StatefulSet", namespace, name)
        plan: objects.ServerPlan | None = None
        problem, notes = "", []
        try:
            plan = _plan(resource, checkpoints)
            notes = self._apply(plan, live)
        except ClusterError as error:
            if error.status == 0 or error.status >= 500:
                raise
            problem = f"the Kubernetes API refuses: {error}"
        except OperatorError as error:
            problem = str(error)
        if problem and problem != resource.get("status", {}).get("lastError"):
            report("Invalid", problem)
        for note in notes:
            report("Restored", note)
        volumes = self._stopped_volumes(plan, namespace, name) if plan is not None and not problem else []
        live = self.cluster.get("StatefulSet", namespace, name)
        seen = Seen(
            resource["metadata"]["generation"],
            0 if live is None else live["spec"]["replicas"],
            digest="" if plan is None else plan.digest,
            image="" if plan is None else plan.spec.image,
            pods=pod_reports(self._pods(namespace, name)),
            problem=problem,
            restored=notes[0] if notes else "",
            volumes=volumes,
        )
        if plan is not None and not problem and live is not None:
            self._prune_settings(plan, seen, live)
        self._write_server(resource, seen)
        self._write_checkpoints(checkpoints, seen, namespace)

    def _apply(self, plan: objects.ServerPlan, live: Object | None) -> list[str]:
        """Apply all objects of a plan. Return what others had changed."""
        certificates = self.cluster.has_cert_manager()
        replicas = wanted_replicas(plan.spec, live)
        wanted = objects.every_object(plan, replicas=replicas, certificates=certificates)
        # All names are checked before anything is written, so that a refusal leaves everything as it is.
        for one in wanted:
            self._refuse_foreign(one, plan.uid)
        notes = []
        for one in wanted:
            is_scaled = one["kind"] == "StatefulSet" and plan.spec.autoscaling is not None
            _, note = self.cluster.apply(one, leave_replicas=is_scaled)
            if note:
                notes.append(f"{note}; set back")
        kinds = {one["kind"] for one in wanted}
        for kind in _OPTIONAL:
            if kind not in kinds and (kind != "Certificate" or certificates):
                self._delete_owned(kind, plan.namespace, plan.server, plan.uid)
        return notes

    def _refuse_foreign(self, wanted: Object, uid: str) -> None:
        kind, metadata = wanted["kind"], wanted["metadata"]
        present = self.cluster.get(kind, metadata["namespace"], metadata["name"])
        if present is None or owned_by(present, uid):
            return
        if present["metadata"].get("deletionTimestamp"):
            raise OperatorError(
                f"{kind} {metadata['name']} of an earlier server is still being deleted; wait for it"
            )
        raise OperatorError(
            f"{kind} {metadata['name']} exists and belongs to something else; delete it, or give the server "
            "another name"
        )

    def _prune_settings(self, plan: objects.ServerPlan, seen: Seen, live: Object) -> None:
        """Delete the settings of earlier versions when no pod, also none that restarts, can need them."""
        settled = live.get("status", {}).get("observedGeneration") == live["metadata"]["generation"]
        if not settled or not seen.pods or any(pod.digest != plan.digest for pod in seen.pods):
            return
        for one in self.cluster.list("ConfigMap", plan.namespace, names.labels(plan.server)):
            if one["metadata"]["name"] != plan.config_map and owned_by(one, plan.uid):
                self.cluster.delete("ConfigMap", plan.namespace, one["metadata"]["name"])

    def _stopped_volumes(self, plan: objects.ServerPlan, namespace: str, name: str) -> list[Object]:
        """Ship what the volumes of removed replicas hold. Return them as `status.volumes`."""
        running = _ordinals(self._pods(namespace, name))
        live = self.cluster.get("StatefulSet", namespace, name)
        replicas = 0 if live is None else live["spec"]["replicas"]
        lines: list[Object] = []
        for ordinal, claim in self._claims(namespace, name).items():
            claim_name, job_name = claim["metadata"]["name"], names.job_name(name, ordinal)
            annotations = claim["metadata"].get("annotations", {})
            if ordinal in running or ordinal < replicas:
                marks = [
                    key for key in (names.SHIPPED_ANNOTATION, names.KEPT_ANNOTATION) if key in annotations
                ]
                if marks:
                    # The replica writes again, so what was known about the volume no longer holds.
                    self._annotate(claim, dict.fromkeys(marks))
                    self.cluster.delete("Job", namespace, job_name)
                continue
            if annotations.get(names.SHIPPED_ANNOTATION) == "true":
                lines.append(
                    {"claim": claim_name, "state": "Shipped", "reason": "all of its records are shipped"}
                )
                continue
            if plan.spec.ship is None:
                reason = "its replica was removed, and spec.ship is not set; it is kept for a later replica"
                lines.append({"claim": claim_name, "state": "Kept", "reason": reason})
                continue
            job = self.cluster.get("Job", namespace, job_name)
            succeeded, reason = job_result(job)
            if job is None:
                self.cluster.create(
                    ship_job(
                        name,
                        plan.spec,
                        ordinal,
                        name=job_name,
                        namespace=namespace,
                        config_map=plan.config_map,
                        owner=plan.owner,
                    )
                )
            if succeeded:
                self._annotate(claim, {names.SHIPPED_ANNOTATION: "true"})
                self.cluster.delete("Job", namespace, job_name)
                lines.append(
                    {"claim": claim_name, "state": "Shipped", "reason": "all of its records are shipped"}
                )
            elif succeeded is None:
                lines.append(
                    {"claim": claim_name, "state": "Shipping", "reason": f"Job {job_name} ships its records"}
                )
            else:
                reason = f"Job {job_name} failed: {reason}; delete the Job to try again"
                lines.append({"claim": claim_name, "state": "Kept", "reason": reason})
        return lines

    # --- deletion ---

    def _observe(self, resource: Object, namespace: str, name: str) -> drain.ObservedServer:
        try:
            spec: ServerSpec | None = read(ServerSpec, resource)
        except OperatorError:
            spec = None
        uid = resource["metadata"]["uid"]
        live = self.cluster.get("StatefulSet", namespace, name)
        if live is not None and not owned_by(live, uid):
            live = None
        scaler = self.cluster.get("HorizontalPodAutoscaler", namespace, name)
        jobs = {}
        claims = self._claims(namespace, name) if live is not None else {}
        for ordinal in claims:
            job = self.cluster.get("Job", namespace, names.final_job_name(name, ordinal))
            if job is not None and owned_by(job, uid):
                jobs[ordinal] = job
        return drain.ObservedServer(
            name,
            spec,
            has_autoscaler=scaler is not None and owned_by(scaler, uid),
            replicas=None if live is None else live["spec"]["replicas"],
            # Pods of a StatefulSet that is not ours are not waited for.
            pods=frozenset(_ordinals(self._pods(namespace, name))) if live is not None else frozenset(),
            claims=claims,
            jobs=jobs,
            config_map=None if live is None else _config_map_of(live),
        )

    def _take(self, resource: Object, observed: drain.ObservedServer, step: drain.DrainStep) -> None:
        namespace, name = resource["metadata"]["namespace"], resource["metadata"]["name"]
        if step.remove_autoscaler:
            self.cluster.delete("HorizontalPodAutoscaler", namespace, name)
        if step.scale_to is not None:
            self.cluster.merge("StatefulSet", namespace, name, {"spec": {"replicas": step.scale_to}})
        for ordinal in step.start_jobs:
            if observed.spec is None or observed.config_map is None:
                continue
            self.cluster.create(
                ship_job(
                    name,
                    observed.spec,
                    ordinal,
                    name=names.final_job_name(name, ordinal),
                    namespace=namespace,
                    config_map=observed.config_map,
                    owner=names.owner(name, resource["metadata"]["uid"]),
                )
            )

    def _settle(self, resource: Object, step: drain.DrainStep, report: Report) -> None:
        namespace, name = resource["metadata"]["namespace"], resource["metadata"]["name"]
        for volume in step.volumes:
            claim = names.claim_name(name, volume.ordinal)
            if volume.state == "Deleted":
                self.cluster.delete("PersistentVolumeClaim", namespace, claim)
                report("VolumeDeleted", f"volume {claim} is deleted: {volume.reason}")
            else:
                annotations = {names.KEPT_ANNOTATION: volume.reason}
                self.cluster.merge(
                    "PersistentVolumeClaim", namespace, claim, {"metadata": {"annotations": annotations}}
                )
                report("VolumeKept", f"volume {claim} is kept: {volume.reason}")
        has_certificates = self.cluster.has_cert_manager()
        for kind in _OWNED:
            if kind == "Certificate" and not has_certificates:
                continue
            for one in self.cluster.list(kind, namespace):
                if owned_by(one, resource["metadata"]["uid"]):
                    self.cluster.delete(kind, namespace, one["metadata"]["name"])

    # --- reading and writing ---

    def _checkpoints(self, namespace: str, server: str) -> _Checkpoints:
        every = self.cluster.list("ScorerCheckpoint", namespace)
        resources = [
            one
            for one in every
            if one.get("spec", {}).get("server") == server and "deletionTimestamp" not in one["metadata"]
        ]
        valid, problems = [], {}
        for one in resources:
            name = one["metadata"]["name"]
            try:
                valid.append(documents.Checkpoint(name, read(CheckpointSpec, one)))
            except OperatorError as error:
                problems[name] = str(error)
        return _Checkpoints(resources, valid, problems)

    def _pods(self, namespace: str, name: str) -> list[Object]:
        pods = self.cluster.list("Pod", namespace, names.selector(name))
        return [pod for pod in pods if pod["metadata"]["name"].rpartition("-")[0] == name]

    def _claims(self, namespace: str, name: str) -> dict[int, Object]:
        result = {}
        for claim in self.cluster.list("PersistentVolumeClaim", namespace, names.selector(name)):
            ordinal = names.ordinal_of(claim["metadata"]["name"])
            if ordinal is not None and claim["metadata"]["name"] == names.claim_name(name, ordinal):
                result[ordinal] = claim
        return result

    def _annotate(self, claim: Object, annotations: Mapping[str, str | None]) -> None:
        metadata = claim["metadata"]
        change = {"metadata": {"annotations": dict(annotations)}}
        self.cluster.merge("PersistentVolumeClaim", metadata["namespace"], metadata["name"], change)

    def _delete_owned(self, kind: str, namespace: str, server: str, uid: str) -> None:
        for one in self.cluster.list(kind, namespace, names.labels(server)):
            if owned_by(one, uid):
                self.cluster.delete(kind, namespace, one["metadata"]["name"])

    def _write_server(self, resource: Object, seen: Seen) -> None:
        before = resource.get("status", {})
        self._write("ScorerServer", resource, server_status(seen, before, self.now()))

    def _write_checkpoints(self, checkpoints: _Checkpoints, seen: Seen | None, namespace: str) -> None:
        for resource in checkpoints.resources:
            spec, metadata = resource.get("spec", {}), resource["metadata"]
            problem = checkpoints.problems.get(metadata["name"], "")
            if not problem and seen is None:
                problem = (
                    f"ScorerServer {spec.get('server')} does not exist in namespace {namespace}; create it"
                )
            status = checkpoint_status(
                seen,
                str(spec.get("checkpoint", "")),
                metadata["generation"],
                problem,
                resource.get("status", {}),
                self.now(),
            )
            self._write("ScorerCheckpoint", resource, status)

    def _write(self, kind: str, resource: Object, status: Object) -> None:
        change = change_of(status, resource.get("status", {}))
        if change is not None:
            metadata = resource["metadata"]
            self.cluster.merge(
                kind, metadata["namespace"], metadata["name"], {"status": change}, part="status"
            )


def wanted_replicas(spec: ServerSpec, live: Object | None) -> int | None:
    """Return the number of replicas to apply; None if the autoscaler has set it, and it stays.

    Args:
        spec: The spec of the server.
        live: The StatefulSet; None if there is none.
    """
    scaling = spec.autoscaling
    if scaling is None:
        return spec.fixed_replicas
    if live is None:
        return scaling.min_replicas
    for manager in live["metadata"].get("managedFields", []):
        fields = manager.get("fieldsV1", {}).get("f:spec", {})
        if manager.get("manager") != names.MANAGER and "f:replicas" in fields:
            return None
    # The field has to be owned until the autoscaler owns it. Without an owner it would be set to 1.
    present = int(live["spec"]["replicas"])
    return min(max(present, scaling.min_replicas), scaling.max_replicas)


def _plan(resource: Object, checkpoints: _Checkpoints) -> objects.ServerPlan:
    """Return the plan of a server.

    Raises:
        OperatorError: The server or one of its checkpoints is not valid. The message has one line.
    """
    spec = read(ServerSpec, resource)
    if checkpoints.problem:
        raise OperatorError(checkpoints.problem)
    metadata = resource["metadata"]
    return objects.ServerPlan(
        metadata["name"],
        metadata["namespace"],
        metadata["uid"],
        spec,
        documents.server_document(spec, checkpoints.valid),
        documents.ship_document(spec),
    )


def _config_map_of(live: Object) -> str | None:
    """Return the ConfigMap of a StatefulSet's pods if it has settings of a shipper."""
    pod = live["spec"]["template"]["spec"]
    if not any(one["name"] == "ship" for one in pod.get("initContainers", [])):
        return None
    return next((str(one["configMap"]["name"]) for one in pod["volumes"] if one["name"] == "config"), None)


def _ordinals(pods: list[Object]) -> set[int]:
    found = (names.ordinal_of(pod["metadata"]["name"]) for pod in pods)
    return {ordinal for ordinal in found if ordinal is not None}
