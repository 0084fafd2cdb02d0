"""Tests of the order of a deletion, and of the status: pure functions of what the operator has seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scorer.operator import drain, names
from scorer.operator.names import Object
from scorer.operator.scrape import PodReport, ServedBundle, pod_report
from scorer.operator.spec import ServerSpec, read
from scorer.operator.status import Seen, change_of, checkpoint_status, server_status

SHIP = {"image": "s", "settings": {"delta": {"url": "s3://a/b"}}}
NOW = "2026-11-26T12:00:00Z"


def spec(**changes: Any) -> ServerSpec:
    return read(ServerSpec, {"spec": {"image": "a", **changes}})


def observed(**changes: Any) -> drain.ObservedServer:
    return replace(
        drain.ObservedServer(
            "scorer",
            spec(ship=SHIP),
            has_autoscaler=False,
            replicas=0,
            pods=frozenset(),
            claims={0: {}, 1: {}},
            config_map="scorer-1",
        ),
        **changes,
    )


def job(kind: str, message: str = "") -> Object:
    return {"status": {"conditions": [{"type": kind, "status": "True", "message": message}]}}


def test_replicas_end_one_after_another_from_the_highest() -> None:
    """The controllers of Kubernetes are simulated: a pod ends some time after the number is lowered."""
    now = observed(has_autoscaler=True, replicas=3, pods=frozenset({0, 1, 2}))
    order: list[str] = []
    for _ in range(20):
        step = drain.next_step(now)
        assert not step.is_last
        if step.remove_autoscaler:
            order.append("autoscaler")
            now = replace(now, has_autoscaler=False)
        elif step.scale_to is not None:
            assert step.scale_to == max(now.pods), "only the highest replica may end"
            now = replace(now, replicas=step.scale_to)
            # The pod has not ended yet, so nothing further happens.
            waiting = drain.next_step(now)
            assert (waiting.scale_to, waiting.start_jobs) == (None, ())
            assert f"scorer-{max(now.pods)} is drained" in waiting.message
            order.append(f"replica {max(now.pods)}")
            now = replace(now, pods=now.pods - {max(now.pods)})
        elif step.start_jobs:
            assert not now.pods
            order.append(f"jobs {step.start_jobs}")
            break
    assert order == ["autoscaler", "replica 2", "replica 1", "replica 0", "jobs (0, 1)"]


def test_replicas_that_never_started_do_not_start_any_more() -> None:
    assert drain.next_step(observed(replicas=5, pods=frozenset({0, 1}))).scale_to == 2
    assert drain.next_step(observed(replicas=5)).scale_to == 0


@pytest.mark.parametrize(
    ("policy", "jobs", "states"),
    [
        ("Retain", {0: job("Complete"), 1: job("Failed", "late")}, ["Kept", "Kept"]),
        ("DeleteShipped", {0: job("Complete"), 1: job("Failed", "late")}, ["Deleted", "Kept"]),
        ("Discard", {}, ["Deleted", "Deleted"]),
    ],
)
def test_only_a_shipped_volume_is_deleted(policy: str, jobs: dict[int, Object], states: list[str]) -> None:
    step = drain.next_step(observed(spec=spec(ship=SHIP, storage={"whenDeleted": policy}), jobs=jobs))
    assert step.is_last
    assert [volume.state for volume in step.volumes] == states
    if policy == "DeleteShipped":
        assert step.volumes[1].reason == (
            "not all of its records are shipped: Job scorer-final-1: late; "
            "ship it (scorer ship --once) and delete the claim data-scorer-1"
        )


def test_a_volume_waits_for_its_job_and_the_way_to_override_is_stated() -> None:
    step = drain.next_step(
        observed(spec=spec(ship=SHIP, storage={"whenDeleted": "DeleteShipped"}), jobs={0: {}})
    )
    assert not step.is_last
    assert step.start_jobs == (1,)
    assert [volume.state for volume in step.volumes] == ["Shipping", "Shipping"]
    assert "set spec.storage.whenDeleted to Discard" in step.message


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"spec": None}, "the spec of the server is not valid"),
        ({"spec": spec()}, "spec.ship is not set"),
        ({"config_map": None}, "spec.ship is not set"),
    ],
)
def test_a_volume_of_which_nothing_is_known_is_kept(changes: dict[str, Any], reason: str) -> None:
    step = drain.next_step(observed(**changes))
    assert step.is_last
    assert step.start_jobs == ()
    for volume in step.volumes:
        assert volume.state == "Kept"
        assert reason in volume.reason


METRICS = """\
# TYPE scorer_pressure gauge
scorer_pressure 2
scorer_ready 1
scorer_registry_reachable 1
scorer_log_next_sequence 120
scorer_log_shipped_sequence 100
scorer_lane_share{checkpoint="fraud.checkout",lane="answer-0",bundle="sha256:aa",name="fraud"} 0.9
scorer_lane_share{checkpoint="fraud.checkout",lane="holdout",bundle="sha256:bb",name="fraud"} 0.1
not a metric
scorer_nonsense x
"""


def pod(ordinal: int, digest: str = "d1", *, ready: bool = True) -> Object:
    return {
        "metadata": {"name": f"scorer-{ordinal}", "annotations": {names.CONFIG_ANNOTATION: digest}},
        "spec": {"containers": [{"name": "scorer", "image": "scorer:1"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def test_a_pods_metrics_are_its_report() -> None:
    report = pod_report(pod(1), METRICS)
    assert report == PodReport(
        "scorer-1",
        is_ready=True,
        digest="d1",
        image="scorer:1",
        served=(ServedBundle("fraud.checkout", "sha256:aa", "fraud"),),
        pressure=2.0,
        unshipped=20,
        registry_reachable=True,
    )


def test_the_trouble_of_a_pod_is_one_line() -> None:
    assert "its metrics cannot be read" in pod_report(pod(0), None).trouble
    broken = pod(0, ready=False)
    broken["status"] |= {
        "phase": "Pending",
        "containerStatuses": [
            {
                "name": "scorer",
                "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no\nsuch image"}},
            }
        ],
    }
    assert (
        pod_report(broken, None).trouble == "pod scorer-0: container scorer: ImagePullBackOff: no such image"
    )
    unscheduled = pod(0, ready=False)
    unscheduled["status"] = {
        "phase": "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
        ],
    }
    assert pod_report(unscheduled, None).trouble == "pod scorer-0: Unschedulable: 0/3 nodes"


def seen(*pods: PodReport, **changes: Any) -> Seen:
    return Seen(
        **{"generation": 3, "replicas": 2, "digest": "d1", "image": "scorer:1", "pods": pods, **changes}
    )


def test_the_status_says_what_is_served_and_what_is_wrong() -> None:
    first, second = pod_report(pod(0), METRICS), pod_report(pod(1), METRICS.replace("sha256:aa", "sha256:cc"))
    status = server_status(seen(first, second), {}, NOW)
    assert (status["phase"], status["ready"], status["observedGeneration"]) == ("Ready", "2/2", 3)
    assert (status["pressure"], status["unshippedRecords"], status["lastError"]) == (2, 40, "")
    assert [(one["bundle"], one["replicas"]) for one in status["bundles"]] == [
        ("sha256:aa", 1),
        ("sha256:cc", 1),
    ]
    mixed = checkpoint_status(seen(first, second), "fraud.checkout", 1, "", {}, NOW)
    assert (mixed["state"], mixed["serving"]) == ("Mixed", "1/2")
    same = checkpoint_status(
        seen(first, replace(second, served=first.served)), "fraud.checkout", 1, "", {}, NOW
    )
    assert (same["state"], same["serving"], same["bundle"]) == ("Serving", "2/2", "sha256:aa")
    none = checkpoint_status(seen(first, second), "action.authorise", 1, "", {}, NOW)
    assert (none["state"], none["serving"], none["bundle"]) == ("Waiting", "0/2", "")


@pytest.mark.parametrize(
    ("state", "phase", "error"),
    [
        (seen(PodReport("scorer-0", is_ready=True, digest="d0", image="scorer:1")), "Updating", ""),
        (seen(replicas=2), "Updating", ""),
        (seen(problem="spec.image: wrong"), "Invalid", "spec.image: wrong"),
        (seen(draining="replica scorer-1 is drained"), "Draining", ""),
        (
            seen(
                PodReport("scorer-0", is_ready=True, digest="d1", image="scorer:1", registry_reachable=False),
                PodReport("scorer-1", is_ready=False, digest="d1", image="scorer:1"),
            ),
            "Degraded",
            "the registry cannot be read by scorer-0; the bundles stay",
        ),
    ],
)
def test_the_phase_and_the_error_of_a_server(state: Seen, phase: str, error: str) -> None:
    status = server_status(state, {}, NOW)
    assert (status["phase"], status["lastError"]) == (phase, error)


def test_a_status_that_has_not_changed_is_not_written() -> None:
    first = server_status(seen(), {}, NOW)
    again = server_status(seen(), first, "2026-11-26T13:00:00Z")
    assert change_of(again, first) is None, "times of conditions change only with their status"
    assert change_of({"a": 1}, {"a": 1, "pressure": 2, "kopf": {}}) == {"pressure": None}
    problem = server_status(seen(problem="wrong"), first, "2026-11-26T13:00:00Z")
    accepted = {one["type"]: one["lastTransitionTime"] for one in problem["conditions"]}
    assert accepted == {"Ready": NOW, "Accepted": "2026-11-26T13:00:00Z"}
