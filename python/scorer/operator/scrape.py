"""What the pods of a server report: their readiness for traffic, bundles, pressure and unshipped records."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from scorer.operator import names
from scorer.operator.exposition import samples
from scorer.operator.names import Object

_SECONDS: Final = 2.0
_LARGEST: Final = 4 << 20
_THREADS: Final = 16
_PREFIX: Final = "scorer_"


@dataclass(frozen=True)
class ServedBundle:
    """The bundle that answers most requests of a checkpoint."""

    checkpoint: str
    bundle: str
    """Its digest."""
    name: str
    """Its name."""


@dataclass(frozen=True)
class PodReport:
    """A pod of a server.

    Attributes:
        name: The pod's name.
        is_ready: Whether Kubernetes sends it traffic.
        digest: Digest of the settings that it was created with.
        image: Image of its scoring container.
        trouble: Why it does not run, in one line; "" if it does.
        served: The bundles that it serves; empty if its metrics could not be read.
        pressure: `scorer_pressure`; None if unknown.
        unshipped: Records of its log that are not marked as shipped; None if unknown.
        registry_reachable: Whether it could read the registry; None if unknown.
    """

    name: str
    is_ready: bool
    digest: str = ""
    image: str = ""
    trouble: str = ""
    served: tuple[ServedBundle, ...] = field(default=())
    pressure: float | None = None
    unshipped: int | None = None
    registry_reachable: bool | None = None


def pod_reports(pods: Iterable[Object]) -> list[PodReport]:
    """Return the reports of pods, ordered by number. The metrics of running pods are read in parallel."""
    ordered = sorted(pods, key=lambda pod: names.ordinal_of(pod["metadata"]["name"]) or 0)
    with ThreadPoolExecutor(_THREADS) as executor:
        return list(executor.map(lambda pod: pod_report(pod, _metrics_of(pod)), ordered))


def pod_report(pod: Object, metrics: str | None) -> PodReport:
    """Return the report of a pod.

    Args:
        pod: The pod.
        metrics: The text of its `/metrics`; None if it could not be read.
    """
    status = pod.get("status", {})
    containers = pod["spec"].get("containers", [])
    values = _values(metrics or "")
    next_sequence = _one(values, "scorer_log_next_sequence")
    shipped = _one(values, "scorer_log_shipped_sequence")
    reachable = _one(values, "scorer_registry_reachable")
    return PodReport(
        name=pod["metadata"]["name"],
        is_ready=_condition(status, "Ready") and "deletionTimestamp" not in pod["metadata"],
        digest=pod["metadata"].get("annotations", {}).get(names.CONFIG_ANNOTATION, ""),
        image=next((str(one["image"]) for one in containers if one["name"] == "scorer"), ""),
        trouble=_trouble(pod, has_metrics=metrics is not None),
        served=tuple(_served(values)),
        pressure=_one(values, "scorer_pressure"),
        unshipped=None if next_sequence is None else max(0, int(next_sequence - (shipped or 0))),
        registry_reachable=None if reachable is None else bool(reachable),
    )


_Values = dict[str, list[tuple[dict[str, str], float]]]


def _values(text: str) -> _Values:
    result: _Values = {}
    for name, labels, value in samples(text):
        if name.startswith(_PREFIX):
            result.setdefault(name, []).append((labels, value))
    return result


def _one(values: _Values, name: str) -> float | None:
    return values[name][0][1] if name in values else None


def _served(values: _Values) -> Iterable[ServedBundle]:
    largest: dict[str, tuple[float, ServedBundle]] = {}
    for labels, share in values.get("scorer_lane_share", []):
        checkpoint = labels.get("checkpoint", "")
        if checkpoint not in largest or share > largest[checkpoint][0]:
            largest[checkpoint] = (
                share,
                ServedBundle(checkpoint, labels.get("bundle", ""), labels.get("name", "")),
            )
    return (served for _, (_, served) in sorted(largest.items()))


def _condition(status: Object, name: str) -> bool:
    return any(one["type"] == name and one["status"] == "True" for one in status.get("conditions", []))


def _trouble(pod: Object, *, has_metrics: bool) -> str:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    for one in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        waiting = one.get("state", {}).get("waiting", {})
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            ended = one.get("lastState", {}).get("terminated", {})
            reason = waiting.get("message") or ended.get("message") or ""
            return _line(f"pod {name}: container {one['name']}: {waiting['reason']}: {reason}")
    for one in status.get("conditions", []):
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return _line(f"pod {name}: {one.get('reason', 'not scheduled')}: {one.get('message', '')}")
    if status.get("phase") == "Running" and not has_metrics:
        return f"pod {name}: its metrics cannot be read; check the network policies for port {_port(pod)}"
    return ""


def _line(text: str) -> str:
    return " ".join(text.split()).rstrip(": ")[:300]


def _port(pod: Object) -> int:
    ports = (port for one in pod["spec"].get("containers", []) for port in one.get("ports", []))
    return next(
        (int(port["containerPort"]) for port in ports if port.get("name") == "metrics"), names.METRICS_PORT
    )


def _metrics_of(pod: Object) -> str | None:
    """Return the text of a pod's metrics; None if it does not run or does not answer."""
    from http.client import HTTPConnection, HTTPException

    status = pod.get("status", {})
    address = status.get("podIP")
    if status.get("phase") != "Running" or not address:
        return None
    connection = HTTPConnection(address, _port(pod), timeout=_SECONDS)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read(_LARGEST).decode("utf-8", "replace")
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()
    return text if answer.status == 200 else None
