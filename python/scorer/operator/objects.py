"""The objects of a server: pure functions of its spec and its settings."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from scorer import config
from scorer.operator import names
from scorer.operator.names import Object
from scorer.operator.pods import pod_template
from scorer.operator.spec import ServerSpec


@dataclass(frozen=True)
class ServerPlan:
    """What a server needs.

    Attributes:
        server: The server's name.
        namespace: Its namespace.
        uid: Its uid, for owner references.
        spec: Its spec.
        settings: The text of `scorer.toml`.
        ship: The text of `ship.toml`; None if its records are not shipped.
    """

    server: str
    namespace: str
    uid: str
    spec: ServerSpec
    settings: str
    ship: str | None = None

    @property
    def digest(self) -> str:
        """Digest of the settings files, 16 hexadecimal digits."""
        return hashlib.sha256(f"{self.settings}\0{self.ship or ''}".encode()).hexdigest()[:16]

    @property
    def config_map(self) -> str:
        """Name of the ConfigMap. It names the content, so a pod restarts with the settings it began with."""
        return f"{self.server}-{self.digest}"

    @property
    def owner(self) -> Object:
        """Owner reference to the server."""
        return names.owner(self.server, self.uid)


def every_object(plan: ServerPlan, *, replicas: int | None, certificates: bool) -> list[Object]:
    """Return all objects of a server, in the order in which they are created.

    Args:
        plan: The server.
        replicas: Number of replicas; None if the autoscaler has set it.
        certificates: Whether cert-manager is present.
    """
    objects = [service_account(plan), config_map(plan)]
    if certificates and plan.spec.tls.secret_name is None:
        objects.append(certificate(plan))
    objects += [service(plan), network_policy(plan), disruption_budget(plan), stateful_set(plan, replicas)]
    if plan.spec.autoscaling is not None:
        objects.append(autoscaler(plan))
    return objects


def service_account(plan: ServerPlan) -> Object:
    """Return the account of the pods. It has no rights and no token."""
    return _object(plan, "v1", "ServiceAccount", plan.server) | {"automountServiceAccountToken": False}


def config_map(plan: ServerPlan) -> Object:
    """Return the ConfigMap with the settings files."""
    data = {"scorer.toml": plan.settings}
    if plan.ship is not None:
        data["ship.toml"] = plan.ship
    return _object(plan, "v1", "ConfigMap", plan.config_map) | {"immutable": True, "data": data}


def certificate(plan: ServerPlan) -> Object:
    """Return cert-manager's Certificate of the servers. A live server is also a client of the shadow pool."""
    server, namespace, tls = plan.server, plan.namespace, plan.spec.tls
    is_live = plan.spec.role == "live"
    return _object(plan, "cert-manager.io/v1", "Certificate", names.tls_secret(server)) | {
        "spec": {
            "secretName": names.tls_secret(server),
            "duration": "48h",
            "renewBefore": "24h",
            "uris": [f"spiffe://{plan.spec.trust_domain}/{'live' if is_live else 'server'}"],
            "dnsNames": [
                server,
                f"{server}.{namespace}.svc",
                f"{server}.{namespace}.svc.cluster.local",
                "localhost",
            ],
            "ipAddresses": ["127.0.0.1"],
            "usages": ["client auth", "server auth"] if is_live else ["server auth"],
            "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
            "issuerRef": {"name": tls.issuer.name, "kind": tls.issuer.kind},
        }
    }


def service(plan: ServerPlan) -> Object:
    """Return the Service: headless for live servers, because their callers balance the load themselves."""
    spec: Object = {
        "selector": names.selector(plan.server),
        "ports": [
            {"name": "grpc", "port": names.GRPC_PORT, "targetPort": "grpc", "appProtocol": "grpcs"},
        ],
    }
    if plan.spec.role == "live":
        spec["clusterIP"] = "None"
    return _object(plan, "v1", "Service", plan.server) | {"spec": spec}


def network_policy(plan: ServerPlan) -> Object:
    """Return the policy: callers reach the scoring port, everything in the cluster the metrics."""
    is_live = plan.spec.role == "live"
    callers = names.CLIENT_LABEL if is_live else names.LIVE_LABEL
    open_ports = [{"port": names.METRICS_PORT}]
    if plan.ship is not None:
        open_ports.append({"port": names.SHIP_PORT})
    return _object(plan, "networking.k8s.io/v1", "NetworkPolicy", plan.server) | {
        "spec": {
            "podSelector": {"matchLabels": names.selector(plan.server)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [{"podSelector": {"matchLabels": {callers: "true"}}}],
                    "ports": [{"port": names.GRPC_PORT}],
                },
                {"ports": open_ports},
            ],
        }
    }


def disruption_budget(plan: ServerPlan) -> Object:
    """Return the budget: maintenance of nodes stops one replica at a time."""
    return _object(plan, "policy/v1", "PodDisruptionBudget", plan.server) | {
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": names.selector(plan.server)}}
    }


def stateful_set(plan: ServerPlan, replicas: int | None) -> Object:
    """Return the StatefulSet.

    It is not a Deployment, because each replica has a decision log with a single writer: a restarted replica
    must mount the volume of its predecessor, and only after that one has ended.
    """
    spec = plan.spec
    claim: Object = {
        "accessModes": ["ReadWriteOncePod"],
        "resources": {"requests": {"storage": spec.storage.size}},
    }
    if spec.storage.storage_class_name is not None:
        claim["storageClassName"] = spec.storage.storage_class_name
    drain = config.parse(plan.settings, environment={}).server.drain_seconds
    return _object(plan, "apps/v1", "StatefulSet", plan.server) | {
        "spec": {
            **({} if replicas is None else {"replicas": replicas}),
            "serviceName": plan.server,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": names.selector(plan.server)},
            # The operator decides about volumes, by what is shipped.
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "template": pod_template(
                plan.server, spec, config_map=plan.config_map, digest=plan.digest, drain_seconds=drain
            ),
            "volumeClaimTemplates": [
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {"name": "data"},
                    "spec": claim,
                }
            ],
        }
    }


def autoscaler(plan: ServerPlan) -> Object:
    """Return the autoscaler.

    `scorer_pressure` is 0 while there is capacity left, so it alone would remove replicas from servers that
    are well used. The CPU use keeps them. Replicas are removed one at a time, after half an hour.
    """
    scaling = plan.spec.autoscaling
    if scaling is None:
        raise ValueError("the server has a fixed number of replicas")
    return _object(plan, "autoscaling/v2", "HorizontalPodAutoscaler", plan.server) | {
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": plan.server},
            "minReplicas": scaling.min_replicas,
            "maxReplicas": scaling.max_replicas,
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {
                        "metric": {"name": "scorer_pressure"},
                        "target": {"type": "AverageValue", "averageValue": scaling.pressure},
                    },
                },
                {
                    "type": "ContainerResource",
                    "containerResource": {
                        "name": "cpu",
                        "container": "scorer",
                        "target": {"type": "Utilization", "averageUtilization": scaling.cpu_percent},
                    },
                },
            ],
            "behavior": {
                "scaleUp": {
                    "stabilizationWindowSeconds": 0,
                    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 30}],
                },
                "scaleDown": {
                    "stabilizationWindowSeconds": 1800,
                    "policies": [{"type": "Pods", "value": 1, "periodSeconds": 300}],
                },
            },
        }
    }


def _object(plan: ServerPlan, api_version: str, kind: str, name: str) -> Object:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": plan.namespace,
            "labels": names.labels(plan.server),
            "ownerReferences": [plan.owner],
        },
    }
