"""Names that the operator shares with its users: the API group, labels, annotations, ports and paths."""

from __future__ import annotations

from typing import Any, Final

Object = dict[str, Any]
"""An object of the Kubernetes API, as JSON."""

GROUP: Final = "scorer.internal"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

MANAGER: Final = "scorer-operator"
"""Field manager of server-side apply, and value of the label `app.kubernetes.io/managed-by`."""
FINALIZER: Final = f"{GROUP}/keep-the-log"

NAME_LABEL: Final = "app.kubernetes.io/name"
MANAGED_LABEL: Final = "app.kubernetes.io/managed-by"
LIVE_LABEL: Final = "scorer-live"
"""Label of pods that may connect to the shadow pool."""
CLIENT_LABEL: Final = "scorer-client"
"""Label of pods that may connect to a server."""

CONFIG_ANNOTATION: Final = f"{GROUP}/settings"
"""Annotation of the pod template: the digest of the settings, so that new settings restart the pods."""
SHIPPED_ANNOTATION: Final = f"{GROUP}/shipped"
"""Annotation of a volume claim without a pod: `true` after all of its records were shipped."""
KEPT_ANNOTATION: Final = f"{GROUP}/kept-because"
"""Annotation of a volume claim that outlives its server: the reason."""

GRPC_PORT: Final = 7700
METRICS_PORT: Final = 7702
SHIP_PORT: Final = 7703

CONFIG_DIR: Final = "/etc/scorer"
TLS_DIR: Final = "/etc/scorer-tls"
DATA_DIR: Final = "/var/lib/scorer"
STATE_DIR: Final = f"{DATA_DIR}/state"
LOG_DIR: Final = f"{DATA_DIR}/decisions"
REGISTRY_DIR: Final = "/srv/registry"

USER: Final = 65532
"""User and group of every process; that of the serving image."""


def labels(server: str) -> dict[str, str]:
    """Return the labels of every object of a server."""
    return {NAME_LABEL: server, MANAGED_LABEL: MANAGER}


def selector(server: str) -> dict[str, str]:
    """Return the labels that select the pods of a server."""
    return {NAME_LABEL: server}


def tls_secret(server: str) -> str:
    """Return the name of the Secret with a server's certificate, if its spec names none."""
    return f"{server}-tls"


def owner(server: str, uid: str) -> Object:
    """Return the owner reference to a server, for the objects that are deleted with it."""
    return {
        "apiVersion": API_VERSION,
        "kind": "ScorerServer",
        "name": server,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def claim_name(server: str, ordinal: int) -> str:
    """Return the name of the volume claim of a replica, as the StatefulSet controller names it."""
    return f"data-{server}-{ordinal}"


def job_name(server: str, ordinal: int) -> str:
    """Return the name of the Job that ships what the volume of a stopped replica holds."""
    return f"{server}-ship-{ordinal}"


def final_job_name(server: str, ordinal: int) -> str:
    """Return the name of the same Job while the server is deleted, after its last replica has ended."""
    return f"{server}-final-{ordinal}"


def ordinal_of(name: str) -> int | None:
    """Return the number at the end of the name of a pod, claim or Job; None if there is none."""
    tail = name.rpartition("-")[2]
    return int(tail) if tail.isascii() and tail.isdigit() else None
