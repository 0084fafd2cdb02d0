"""The pod of a server: the scoring container, its shipper, and their volumes."""

from __future__ import annotations

from scorer.operator import names
from scorer.operator.names import Object
from scorer.operator.spec import Requests, Resources, ServerSpec, Ship

DRAIN_SECONDS = 5.0
"""Default of `server.drain_seconds`."""
PRE_STOP_SECONDS = 5
"""Time in which callers see in DNS that a replica ends, before it rejects requests."""


def pod_template(
    server: str, spec: ServerSpec, *, config_map: str, digest: str, drain_seconds: float = DRAIN_SECONDS
) -> Object:
    """Return the pod template of a server.

    Args:
        server: The server's name.
        spec: Its spec.
        config_map: Name of the ConfigMap with its settings.
        digest: Digest of the settings.
        drain_seconds: `server.drain_seconds` of the settings.
    """
    labels = names.labels(server)
    if spec.role == "live":
        labels[names.LIVE_LABEL] = "true"
    return {
        "metadata": {
            "labels": labels,
            "annotations": {
                "prometheus.io/scrape": "true",
                "prometheus.io/port": str(names.METRICS_PORT),
                "prometheus.io/path": "/metrics",
                names.CONFIG_ANNOTATION: digest,
            },
        },
        "spec": {
            "serviceAccountName": server,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            # Twice the time of the drain, because sealing the log and exiting may take as long again.
            "terminationGracePeriodSeconds": max(30, PRE_STOP_SECONDS + int(2 * drain_seconds + 0.999)),
            "securityContext": pod_security(),
            # Replicas are spread over machines, so that they do not fail together.
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": names.selector(server)},
                }
            ],
            **({"initContainers": [_shipper(spec.ship, spec)]} if spec.ship is not None else {}),
            "containers": [_scorer(spec)],
            "volumes": [
                config_volume(config_map),
                {
                    "name": "tls",
                    "secret": {
                        "secretName": spec.tls.secret_name or names.tls_secret(server),
                        "defaultMode": 0o440,
                    },
                },
                temporary_volume(),
                {
                    "name": "registry",
                    "persistentVolumeClaim": {"claimName": spec.registry.claim_name, "readOnly": True},
                },
            ],
        },
    }


def pod_security() -> Object:
    """Return the security context of every pod that the operator builds."""
    return {
        "runAsNonRoot": True,
        "runAsUser": names.USER,
        "runAsGroup": names.USER,
        "fsGroup": names.USER,
        # OnRootMismatch avoids walking a large log directory at each start.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Object:
    """Return the security context of every container that the operator builds."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def config_volume(config_map: str) -> Object:
    """Return the volume of the settings files."""
    return {"name": "config", "configMap": {"name": config_map}}


def temporary_volume() -> Object:
    """Return the volume of /tmp."""
    return {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}


def common_mounts() -> list[Object]:
    """Return the mounts of every container that reads the settings and the log."""
    return [
        {"name": "config", "mountPath": names.CONFIG_DIR, "readOnly": True},
        {"name": "data", "mountPath": names.DATA_DIR},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a volume of the pod
    ]


def resources(given: Resources) -> Object:
    """Return requests and limits of a container."""
    requests: Requests = given.requests
    return {
        "requests": {"cpu": requests.cpu, "memory": requests.memory},
        "limits": {"memory": given.limits.memory},
    }


def ship_environment(ship: Ship) -> Object:
    """Return the part of a container that gives the shipper its credentials."""
    if ship.credentials_secret is None:
        return {}
    return {"envFrom": [{"secretRef": {"name": ship.credentials_secret}}]}


def _scorer(spec: ServerSpec) -> Object:
    return {
        "name": "scorer",
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "ports": [
            {"name": "grpc", "containerPort": names.GRPC_PORT},
            {"name": "metrics", "containerPort": names.METRICS_PORT},
        ],
        "startupProbe": {**_probe("/live"), "periodSeconds": 1, "failureThreshold": 30},
        # Ready when every checkpoint has its bundle. A draining replica is not ready.
        "readinessProbe": {
            **_probe("/ready"),
            "periodSeconds": 2,
            "timeoutSeconds": 1,
            "failureThreshold": 2,
        },
        "livenessProbe": {**_probe("/live"), "periodSeconds": 10, "timeoutSeconds": 2, "failureThreshold": 3},
        **(
            {"lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}}}
            if spec.role == "live"
            else {}
        ),
        "resources": resources(spec.resources),
        "securityContext": container_security(),
        "volumeMounts": [
            *common_mounts(),
            {"name": "tls", "mountPath": names.TLS_DIR, "readOnly": True},
            {"name": "registry", "mountPath": names.REGISTRY_DIR, "readOnly": True},
        ],
    }


def _shipper(ship: Ship, spec: ServerSpec) -> Object:
    """Return the shipper. As a native sidecar it starts before the server and stops after it."""
    return {
        "name": "ship",
        "image": ship.image,
        "imagePullPolicy": spec.image_pull_policy,
        "restartPolicy": "Always",
        "command": ["scorer", "ship", "--config", f"{names.CONFIG_DIR}/ship.toml", "--server", "$(POD_NAME)"],
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        **ship_environment(ship),
        "ports": [{"name": "ship-metrics", "containerPort": names.SHIP_PORT}],
        "resources": resources(ship.resources),
        "securityContext": container_security(),
        "volumeMounts": common_mounts(),
    }


def _probe(path: str) -> Object:
    return {"httpGet": {"port": names.METRICS_PORT, "path": path}}
