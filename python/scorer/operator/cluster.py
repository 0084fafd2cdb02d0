"""The calls of the operator to the Kubernetes API server: objects as JSON, each call with a time limit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from scorer.errors import ClusterError
from scorer.operator import names
from scorer.operator.names import Object

_TIMEOUT: Final = (5.0, 15.0)
"""Limits of connecting and of reading, seconds."""
_NOT_FOUND, _CONFLICT = 404, 409
_PAGE = 500

_PLURALS: Final = {
    "ScorerServer": (names.API_VERSION, "scorerservers"),
    "ScorerCheckpoint": (names.API_VERSION, "scorercheckpoints"),
    "ServiceAccount": ("v1", "serviceaccounts"),
    "ConfigMap": ("v1", "configmaps"),
    "Service": ("v1", "services"),
    "Pod": ("v1", "pods"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "Job": ("batch/v1", "jobs"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "HorizontalPodAutoscaler": ("autoscaling/v2", "horizontalpodautoscalers"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "Certificate": ("cert-manager.io/v1", "certificates"),
}
"""API version and plural of every kind that the operator uses."""


class Cluster:
    """The API server.

    Args:
        client: A configured `kubernetes.client.ApiClient`.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    def connect(cls, kubeconfig: str | None = None) -> Cluster:
        """Return the cluster of a kubeconfig file, of the pod's account, or of the default kubeconfig.

        Raises:
            ClusterError: There is no usable configuration.
        """
        from kubernetes import client

        settings = configuration(kubeconfig)
        # A call that fails is repeated by the next pass.
        settings.retries = False
        return cls(client.ApiClient(settings))

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return an object, or None if there is none."""
        try:
            return self._call("GET", _path(kind, namespace, name))
        except ClusterError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def list(self, kind: str, namespace: str, labels: Mapping[str, str] | None = None) -> list[Object]:
        """Return the objects of a kind that have the labels."""
        query = {"limit": str(_PAGE)}
        if labels:
            query["labelSelector"] = ",".join(f"{key}={value}" for key, value in labels.items())
        items: list[Object] = []
        while True:
            answer = self._call("GET", _path(kind, namespace), query=query)
            items += answer["items"]
            query["continue"] = answer["metadata"].get("continue", "")
            if not query["continue"]:
                return items

    def apply(self, wanted: Object, *, leave_replicas: bool = False) -> tuple[Object, str]:
        """Create an object, or set the fields that it names (server-side apply).

        Args:
            wanted: The object.
            leave_replicas: Whether `spec.replicas` stays if another manager has changed it.

        Returns:
            The object as it is now, and what another manager had changed ("" if nothing). Such fields are set
            back. Fields that `wanted` does not name stay as they are.
        """
        try:
            return self._apply(wanted, force=False), ""
        except ClusterError as error:
            if error.status != _CONFLICT:
                raise
            if leave_replicas and "spec.replicas" in error.fields:
                # The autoscaler has set it after the StatefulSet was read.
                spec = {key: value for key, value in wanted["spec"].items() if key != "replicas"}
                return self.apply({**wanted, "spec": spec})
            return self._apply(wanted, force=True), f"{wanted['kind']} {wanted['metadata']['name']}: {error}"

    def create(self, wanted: Object) -> None:
        """Create an object. One that exists already stays as it is."""
        kind, namespace = wanted["kind"], wanted["metadata"]["namespace"]
        try:
            self._call("POST", _path(kind, namespace), body=wanted)
        except ClusterError as error:
            if error.status != _CONFLICT:
                raise

    def merge(self, kind: str, namespace: str, name: str, change: Object, *, part: str = "") -> None:
        """Change fields of an object that may have gone (JSON merge patch).

        Args:
            kind: The object's kind.
            namespace: Its namespace.
            name: Its name.
            change: The fields; None removes one.
            part: Name of a subresource, such as `status`.
        """
        path = _path(kind, namespace, name) + (f"/{part}" if part else "")
        try:
            self._call("PATCH", path, body=change, content="application/merge-patch+json")
        except ClusterError as error:
            if error.status != _NOT_FOUND:
                raise

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object that may have gone, and what it owns."""
        try:
            self._call("DELETE", _path(kind, namespace, name), query={"propagationPolicy": "Background"})
        except ClusterError as error:
            if error.status != _NOT_FOUND:
                raise

    def has_cert_manager(self) -> bool:
        """Return whether the API of cert-manager is there."""
        try:
            answer = self._call("GET", "/apis/cert-manager.io/v1")
        except ClusterError as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        return any(one["name"] == "certificates" for one in answer["resources"])

    def _apply(self, wanted: Object, *, force: bool) -> Object:
        path = _path(wanted["kind"], wanted["metadata"]["namespace"], wanted["metadata"]["name"])
        query = {"fieldManager": names.MANAGER, "force": str(force).lower()}
        return self._call("PATCH", path, query=query, body=wanted, content="application/apply-patch+yaml")

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content: str = "application/json",
    ) -> Object:
        """Call the API server and return its answer.

        Raises:
            ClusterError: There was no answer, or an error. The message has one line.
        """
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        request = self._client.param_serialize(
            method,
            path,
            query_params=[(key, value) for key, value in (query or {}).items() if value],
            header_params={"Accept": "application/json", "Content-Type": content},
            # The client encodes every content type that is used here as JSON.
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = self._client.call_api(*request, _request_timeout=_TIMEOUT)
            content_bytes = response.read()
        except (HTTPError, ApiException, OSError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ClusterError(f"the Kubernetes API does not answer {method} {path}: {reason}") from None
        try:
            answer: Object = json.loads(content_bytes)
        except ValueError:
            answer = {}
        if response.status >= 300:
            conflicts = _conflicts(answer)
            reason = _reason(answer, conflicts, f"{method} {path}: HTTP {response.status}")
            raise ClusterError(reason, response.status, tuple(path for path, _ in conflicts))
        return answer


def configuration(kubeconfig: str | None) -> Any:
    """Return a `kubernetes.client.Configuration`: of a file, of the pod's account, or of the default file.

    Raises:
        ClusterError: There is no usable configuration.
    """
    from kubernetes import client, config

    settings = client.Configuration()
    try:
        if kubeconfig is not None:
            config.load_kube_config(kubeconfig, client_configuration=settings)
        else:
            try:
                config.load_incluster_config(client_configuration=settings)
            except config.ConfigException:
                config.load_kube_config(client_configuration=settings)
    except (config.ConfigException, OSError) as error:
        reason = " ".join(str(error).split())
        raise ClusterError(f"no Kubernetes configuration: {reason}; name a file with --kubeconfig") from None
    return settings


def owned_by(resource: Object, uid: str) -> bool:
    """Return whether an object has an owner reference to a uid."""
    return any(owner["uid"] == uid for owner in resource["metadata"].get("ownerReferences", []))


def _path(kind: str, namespace: str, name: str | None = None) -> str:
    version, plural = _PLURALS[kind]
    root = "/api" if version == "v1" else "/apis"
    path = f"{root}/{version}/namespaces/{quote(namespace, safe='')}/{plural}"
    return path if name is None else f"{path}/{quote(name, safe='')}"


def _conflicts(answer: Object) -> list[tuple[str, str]]:
    """Return the fields of a conflict, each with its manager."""
    causes = (answer.get("details") or {}).get("causes") or []
    return [
        (one["field"].lstrip("."), one["message"].removeprefix("conflict with "))
        for one in causes
        if one.get("reason") == "FieldManagerConflict"
    ]


def _reason(answer: Object, conflicts: list[tuple[str, str]], default: str) -> str:
    """Return the reason of a refusal in one line; of a conflict, the fields and their managers."""
    if conflicts:
        shown = "; ".join(f"{path} ({manager})" for path, manager in conflicts[:3])
        more = f" and {len(conflicts) - 3} more fields" if len(conflicts) > 3 else ""
        return f"changed by others: {shown}{more}"
    return " ".join(str(answer.get("message") or default).split())
