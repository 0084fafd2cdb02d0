"""The deletion of a server: replicas end one after another, and no volume with unshipped records is deleted.

The order is: the autoscaler, which would add replicas; the replicas, from the highest number, each after its
predecessor has ended; a Job for each volume, which ships what is left; the volumes, by policy; the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from scorer.operator import names
from scorer.operator.job import job_result
from scorer.operator.names import Object
from scorer.operator.spec import ServerSpec

OVERRIDE = "set spec.storage.whenDeleted to Discard to delete the volumes with their records"


@dataclass(frozen=True)
class ObservedServer:
    """What is there of a server that is being deleted.

    Attributes:
        server: The server's name.
        spec: Its spec; None if it is not valid.
        has_autoscaler: Whether there is an autoscaler.
        replicas: `spec.replicas` of the StatefulSet; None if there is no StatefulSet.
        pods: Numbers of the pods that exist.
        claims: Its volume claims by number.
        jobs: Its final Jobs by number.
        config_map: ConfigMap with `ship.toml`; None if there is none.
    """

    server: str
    spec: ServerSpec | None
    has_autoscaler: bool
    replicas: int | None
    pods: frozenset[int]
    claims: Mapping[int, Object] = field(default_factory=dict)
    jobs: Mapping[int, Object] = field(default_factory=dict)
    config_map: str | None = None


@dataclass(frozen=True)
class Volume:
    """A volume of the server, and what happens to it.

    Attributes:
        ordinal: Number of the replica.
        state: `Waiting`; `Shipping`, by a Job; `Deleted`; or `Kept`.
        reason: Why, in one line.
    """

    ordinal: int
    state: Literal["Waiting", "Shipping", "Deleted", "Kept"]
    reason: str


@dataclass(frozen=True)
class DrainStep:
    """What to do next.

    Attributes:
        remove_autoscaler: Delete the autoscaler.
        scale_to: Set the number of replicas; None: leave it.
        start_jobs: Start the final Job of these replicas.
        volumes: What happens to each volume.
        message: What the deletion waits for; "" if it waits for nothing.
    """

    message: str
    remove_autoscaler: bool = False
    scale_to: int | None = None
    start_jobs: tuple[int, ...] = ()
    volumes: tuple[Volume, ...] = ()

    @property
    def is_last(self) -> bool:
        """Whether the volumes can be settled now and everything else be deleted."""
        return not self.message


def next_step(observed: ObservedServer) -> DrainStep:
    """Return the next step of a deletion. It is repeated until `is_last`."""
    waiting = tuple(
        Volume(ordinal, "Waiting", "its replica has to end first") for ordinal in sorted(observed.claims)
    )
    if observed.has_autoscaler:
        return DrainStep("the autoscaler is removed", remove_autoscaler=True, volumes=waiting)
    highest = max(observed.pods, default=-1)
    if observed.replicas is not None and observed.replicas > highest + 1:
        # Replicas that have not started must not start any more.
        return DrainStep(f"{len(observed.pods)} replicas are drained", scale_to=highest + 1, volumes=waiting)
    if highest >= 0:
        message = f"replica {observed.server}-{highest} is drained, {highest} more follow"
        is_draining = observed.replicas is None or observed.replicas <= highest
        return DrainStep(message, scale_to=None if is_draining else highest, volumes=waiting)
    return _settle(observed)


def _settle(observed: ObservedServer) -> DrainStep:
    volumes = tuple(_volume(observed, ordinal) for ordinal in sorted(observed.claims))
    shipping = [volume.ordinal for volume in volumes if volume.state == "Shipping"]
    message = ""
    if shipping:
        claims = ", ".join(names.claim_name(observed.server, ordinal) for ordinal in shipping[:3])
        message = f"records of {len(shipping)} volumes are shipped ({claims}); {OVERRIDE}"
    return DrainStep(
        message,
        start_jobs=tuple(ordinal for ordinal in shipping if ordinal not in observed.jobs),
        volumes=volumes,
    )


def _volume(observed: ObservedServer, ordinal: int) -> Volume:
    spec = observed.spec
    if spec is not None and spec.storage.when_deleted == "Discard":
        return Volume(ordinal, "Deleted", "spec.storage.whenDeleted is Discard")
    if spec is None or spec.ship is None or observed.config_map is None:
        reason = "spec.ship is not set, so it is not known whether its records are shipped"
        invalid = "the spec of the server is not valid, so its records could not be shipped"
        return _kept(observed, ordinal, invalid if spec is None else reason)
    job = names.final_job_name(observed.server, ordinal)
    succeeded, reason = job_result(observed.jobs.get(ordinal))
    if succeeded is None:
        return Volume(ordinal, "Shipping", f"Job {job} ships its records")
    if not succeeded:
        return _kept(observed, ordinal, f"not all of its records are shipped: Job {job}: {reason}")
    if spec.storage.when_deleted == "DeleteShipped":
        return Volume(ordinal, "Deleted", "all of its records are shipped")
    claim = names.claim_name(observed.server, ordinal)
    reason = f"spec.storage.whenDeleted is Retain; all of its records are shipped: delete the claim {claim}"
    return Volume(ordinal, "Kept", reason)


def _kept(observed: ObservedServer, ordinal: int, reason: str) -> Volume:
    claim = names.claim_name(observed.server, ordinal)
    return Volume(ordinal, "Kept", f"{reason}; ship it (scorer ship --once) and delete the claim {claim}")


def lines(volumes: Iterable[Volume], server: str) -> list[Object]:
    """Return volumes in the form of `status.volumes`."""
    return [
        {"claim": names.claim_name(server, one.ordinal), "state": one.state, "reason": one.reason}
        for one in volumes
    ]
