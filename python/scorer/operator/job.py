"""The Job that ships what the volume of a stopped replica still holds."""

from __future__ import annotations

from scorer.errors import OperatorError
from scorer.operator import names, pods
from scorer.operator.names import Object
from scorer.operator.spec import ServerSpec

_RETRIES = 3


def ship_job(
    server: str, spec: ServerSpec, ordinal: int, *, name: str, namespace: str, config_map: str, owner: Object
) -> Object:
    """Return the Job for the volume of one replica. It succeeds only if all records are shipped.

    Args:
        server: The server's name.
        spec: Its spec, with `ship`.
        ordinal: Number of the replica.
        name: Name of the Job.
        namespace: Namespace of the server.
        config_map: Name of the ConfigMap with `ship.toml`.
        owner: Owner reference to the server.

    Raises:
        OperatorError: The spec has no shipper.
    """
    ship = spec.ship
    if ship is None:
        raise OperatorError("spec.ship is not set, so no Job can ship the volume; set it")
    labels = names.labels(f"{server}-ship")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": {
            "backoffLimit": _RETRIES,
            "activeDeadlineSeconds": ship.deadline_seconds,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "restartPolicy": "Never",
                    "serviceAccountName": server,
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "securityContext": pods.pod_security(),
                    "containers": [
                        {
                            "name": "ship",
                            "image": ship.image,
                            "imagePullPolicy": spec.image_pull_policy,
                            "command": [
                                "scorer",
                                "ship",
                                "--config",
                                f"{names.CONFIG_DIR}/ship.toml",
                                "--server",
                                f"{server}-{ordinal}",
                                "--once",
                            ],
                            **pods.ship_environment(ship),
                            "resources": pods.resources(ship.resources),
                            "securityContext": pods.container_security(),
                            "volumeMounts": pods.common_mounts(),
                        }
                    ],
                    "volumes": [
                        pods.config_volume(config_map),
                        pods.temporary_volume(),
                        {
                            "name": "data",
                            "persistentVolumeClaim": {"claimName": names.claim_name(server, ordinal)},
                        },
                    ],
                },
            },
        },
    }


def job_result(job: Object | None) -> tuple[bool | None, str]:
    """Return whether a Job succeeded (None: not finished), and the reason of a failure."""
    for condition in (job or {}).get("status", {}).get("conditions", []):
        if condition.get("status") == "True" and condition.get("type") == "Complete":
            return True, ""
        if condition.get("status") == "True" and condition.get("type") == "Failed":
            return False, str(condition.get("message") or condition.get("reason") or "failed")
    return None, ""
