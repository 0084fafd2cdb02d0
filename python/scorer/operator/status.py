"""The status of both resources: pure functions of what the operator has seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from scorer.operator.names import Object
from scorer.operator.scrape import PodReport, ServedBundle


@dataclass(frozen=True)
class Seen:
    """What the operator has seen of a server.

    Attributes:
        generation: Generation of the object that was read.
        replicas: Wanted number of replicas.
        digest: Digest of the settings that are applied; "" if none were.
        image: Image of the spec.
        pods: Reports of its pods.
        problem: Why the spec is not applied, in one line; "" if it is.
        restored: Fields that others had changed and that were set back; "" if none.
        volumes: Volumes of replicas that do not run, as `status.volumes`.
        draining: What the deletion waits for; None if the server is not being deleted.
    """

    generation: int
    replicas: int
    digest: str = ""
    image: str = ""
    pods: Sequence[PodReport] = ()
    problem: str = ""
    restored: str = ""
    volumes: Sequence[Object] = field(default=())
    draining: str | None = None

    @property
    def ready(self) -> int:
        """Number of replicas that are ready."""
        return sum(pod.is_ready for pod in self.pods)

    @property
    def updated(self) -> int:
        """Number of replicas with the settings and the image of the spec."""
        return sum(pod.digest == self.digest and pod.image == self.image for pod in self.pods)

    @property
    def phase(self) -> str:
        """The state in one word."""
        if self.draining is not None:
            return "Draining"
        if self.problem:
            return "Invalid"
        if self.updated < self.replicas or len(self.pods) != self.replicas:
            return "Updating"
        return "Ready" if self.ready == self.replicas else "Degraded"

    @property
    def last_error(self) -> str:
        """The error that matters most, in one line; "" if there is none."""
        troubles = [pod.trouble for pod in self.pods if pod.trouble]
        unreachable = [pod.name for pod in self.pods if pod.registry_reachable is False]
        if unreachable:
            troubles.append(f"the registry cannot be read by {', '.join(unreachable[:3])}; the bundles stay")
        return next(filter(None, [self.problem, *troubles, self.restored]), "")


def server_status(seen: Seen, before: Object, now: str) -> Object:
    """Return the status of a `ScorerServer`.

    Args:
        seen: What was seen.
        before: The present status, for the times of conditions.
        now: The time, RFC 3339.
    """
    pressures = [pod.pressure for pod in seen.pods if pod.pressure is not None]
    unshipped = [pod.unshipped for pod in seen.pods if pod.unshipped is not None]
    ready_reason = "AllReplicasReady" if seen.ready >= seen.replicas else "ReplicasNotReady"
    status: Object = {
        "observedGeneration": seen.generation,
        "phase": seen.phase,
        "ready": f"{seen.ready}/{seen.replicas}",
        "replicas": len(seen.pods),
        "readyReplicas": seen.ready,
        "updatedReplicas": seen.updated,
        "bundles": _bundles(seen.pods),
        "volumes": list(seen.volumes),
        "lastError": seen.last_error,
        "message": seen.draining or "",
        "conditions": [
            _condition(
                "Ready", seen.ready >= seen.replicas > 0, ready_reason, f"{seen.ready} of {seen.replicas}"
            ),
            _condition(
                "Accepted",
                not seen.problem,
                "Invalid" if seen.problem else "Applied",
                seen.problem or "applied",
            ),
        ],
    }
    if pressures:
        status["pressure"] = int(max(pressures))
    if unshipped:
        status["unshippedRecords"] = sum(unshipped)
    return _with_times(status, before, seen.generation, now)


def checkpoint_status(
    seen: Seen | None, checkpoint: str, generation: int, problem: str, before: Object, now: str
) -> Object:
    """Return the status of a `ScorerCheckpoint`.

    Args:
        seen: What was seen of its server; None if there is no such server.
        checkpoint: Name of the checkpoint.
        generation: Generation of the object that was read.
        problem: Why it is not served, in one line; "" if it may be.
        before: The present status.
        now: The time, RFC 3339.
    """
    pods = () if seen is None else seen.pods
    counts = Counter(
        served for pod in pods if pod.is_ready for served in pod.served if served.checkpoint == checkpoint
    )
    if not problem and seen is not None:
        problem = seen.problem
    wanted = 0 if seen is None else seen.replicas
    serving = sum(counts.values())
    newest, replicas = counts.most_common(1)[0] if counts else (ServedBundle(checkpoint, "", ""), 0)
    state = (
        "Invalid" if problem else "Serving" if 0 < wanted <= replicas else "Mixed" if serving else "Waiting"
    )
    status: Object = {
        "observedGeneration": generation,
        "state": state,
        "bundle": newest.bundle,
        "bundleName": newest.name,
        "serving": f"{replicas}/{wanted}",
        "lastError": problem,
        "conditions": [
            _condition(
                "Ready", state == "Serving", state, f"{replicas} of {wanted} replicas serve the bundle"
            ),
            _condition("Accepted", not problem, "Invalid" if problem else "Applied", problem or "applied"),
        ],
    }
    return _with_times(status, before, generation, now)


def change_of(wanted: Object, before: Object) -> Object | None:
    """Return the merge patch that turns a status into another; None if they are equal."""
    change = {key: value for key, value in wanted.items() if before.get(key) != value}
    change |= {key: None for key in before if key not in wanted and key != "kopf"}
    return change or None


def _bundles(pods: Iterable[PodReport]) -> list[Object]:
    counts = Counter(served for pod in pods for served in pod.served)
    ordered = sorted(counts.items(), key=lambda item: (item[0].checkpoint, -item[1], item[0].bundle))
    return [
        {"checkpoint": served.checkpoint, "bundle": served.bundle, "name": served.name, "replicas": count}
        for served, count in ordered
    ]


def _condition(kind: str, holds: bool, reason: str, message: str) -> Object:
    return {"type": kind, "status": "True" if holds else "False", "reason": reason, "message": message}


def _with_times(status: Object, before: Object, generation: int, now: str) -> Object:
    """Add the generation to each condition, and the time at which its status last changed."""
    old = {one["type"]: one for one in before.get("conditions", [])}
    for one in status["conditions"]:
        previous = old.get(one["type"], {})
        is_same = previous.get("status") == one["status"]
        one["lastTransitionTime"] = previous["lastTransitionTime"] if is_same else now
        one["observedGeneration"] = generation
    return status
