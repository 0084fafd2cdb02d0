"""The operator's process: kopf watches the resources and calls the reconciler.

Every change of a resource starts a pass, and so does an interval, because a pass also restores objects that
others have changed, reads the pods, and does not depend on a watch that has stalled.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import kopf
from kopf._core.engines.peering import Identity  # the type of a public parameter, which kopf does not export

from scorer.errors import ClusterError
from scorer.operator import names
from scorer.operator.cluster import Cluster, configuration
from scorer.operator.reconcile import Report, ServerReconciler

_WATCH_SECONDS: Final = 300
_CONNECT_SECONDS: Final = 10
_RETRY_SECONDS: Final = 2.0
_WORKERS: Final = 8


def run(
    *,
    namespaces: Sequence[str],
    kubeconfig: str | None,
    interval: float,
    health: str | None,
    stop: threading.Event | None = None,
) -> None:
    """Run the operator until SIGTERM.

    Args:
        namespaces: Namespaces to watch; empty: all.
        kubeconfig: File with the address and the credentials of the API server; None: of the pod.
        interval: Time between two passes over each server, seconds.
        health: `http://host:port/path` at which the process answers probes; None: nowhere.
        stop: Ends the operator, instead of SIGTERM.

    Raises:
        ClusterError: There is no usable configuration.
    """
    cluster = Cluster.connect(kubeconfig)
    kopf.configure(log_format=kopf.LogFormat.FULL)
    kopf.run(
        registry=registry(ServerReconciler(cluster), interval=interval, kubeconfig=kubeconfig),
        settings=operator_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=tuple(namespaces),
        liveness_endpoint=health,
        stop_flag=stop,
        # By default kopf asks for the name of the process's user. The user of a container has none.
        identity=Identity(names.MANAGER),
    )


def operator_settings() -> kopf.OperatorSettings:
    """Return kopf's settings: limits of watches, names of annotations, and events."""
    settings = kopf.OperatorSettings()
    # A watch that the server does not end is ended here, so that a stalled connection is replaced.
    settings.watching.server_timeout = _WATCH_SECONDS
    settings.watching.client_timeout = _WATCH_SECONDS + _CONNECT_SECONDS
    settings.watching.connect_timeout = _CONNECT_SECONDS
    settings.networking.connect_timeout = _CONNECT_SECONDS
    settings.networking.request_timeout = 30
    settings.execution.max_workers = _WORKERS
    settings.persistence.finalizer = names.FINALIZER
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"kopf.{names.GROUP}")
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=f"kopf.{names.GROUP}")
    settings.posting.reporting_component = names.MANAGER
    # Only what the reconciler reports becomes an event, and not every line of the log.
    settings.posting.loggers = False
    return settings


def registry(
    reconciler: ServerReconciler, *, interval: float, kubeconfig: str | None = None
) -> kopf.OperatorRegistry:
    """Return the handlers.

    Args:
        reconciler: Does the work.
        interval: Time between two passes over each server, seconds.
        kubeconfig: File with the credentials of the watches; None: of the pod.
    """
    handlers = kopf.OperatorRegistry()
    servers = (names.GROUP, names.VERSION, "scorerservers")
    checkpoints = (names.GROUP, names.VERSION, "scorercheckpoints")

    def reconcile(namespace: str | None, name: str, report: Report) -> None:
        try:
            reconciler.server(str(namespace), name, report)
        except ClusterError as error:
            raise kopf.TemporaryError(str(error), delay=_RETRY_SECONDS) from None

    # The ids are parts of annotations, in which the names of inner functions are not allowed.
    @kopf.on.login(id="login", registry=handlers)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return connection(kubeconfig)

    @kopf.on.create(*servers, id="changed", registry=handlers)
    @kopf.on.update(*servers, id="changed", registry=handlers)
    @kopf.on.resume(*servers, id="changed", registry=handlers)
    def changed(body: kopf.Body, namespace: str | None, name: str, **_: Any) -> None:
        reconcile(namespace, name, _report(body))

    @kopf.timer(*servers, id="due", interval=interval, registry=handlers)
    def due(body: kopf.Body, namespace: str | None, name: str, **_: Any) -> None:
        reconcile(namespace, name, _report(body))

    @kopf.on.delete(*servers, id="deleted", registry=handlers)
    def deleted(body: kopf.Body, namespace: str | None, name: str, **_: Any) -> None:
        try:
            done = reconciler.drained(str(namespace), name, _report(body))
        except ClusterError as error:
            raise kopf.TemporaryError(str(error), delay=_RETRY_SECONDS) from None
        if not done:
            raise kopf.TemporaryError("the server is being drained", delay=min(interval, _RETRY_SECONDS))

    @kopf.on.event(*checkpoints, id="checkpoint", registry=handlers)
    def checkpoint(body: kopf.Body, namespace: str | None, spec: kopf.Spec, **_: Any) -> None:
        if server := spec.get("server"):
            # There is no retry of an event. The interval repeats the pass.
            reconcile(namespace, server, _report(body))

    return handlers


def connection(kubeconfig: str | None) -> kopf.ConnectionInfo:
    """Return the credentials of kopf's watches, from the same place as those of `Cluster`."""
    settings = configuration(kubeconfig)
    header = settings.get_api_key_with_prefix("BearerToken") or settings.get_api_key_with_prefix(
        "authorization"
    )
    scheme, _, token = (header or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=settings.host,
        ca_path=settings.ssl_ca_cert,
        insecure=not settings.verify_ssl,
        username=settings.username or None,
        password=settings.password or None,
        scheme=scheme or None,
        token=token or None,
        certificate_path=settings.cert_file,
        private_key_path=settings.key_file,
    )


def _report(body: kopf.Body) -> Report:
    def report(reason: str, message: str) -> None:
        kopf.event(
            body, type="Warning" if reason != "VolumeDeleted" else "Normal", reason=reason, message=message
        )

    return report
