"""Tests of the objects that the operator builds: they agree with the manifests, and nonsense has a reason."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from manifests import MANIFESTS, documents, read

from scorer import config
from scorer.errors import OperatorError
from scorer.operator import documents as settings_files
from scorer.operator import names, objects
from scorer.operator.job import job_result, ship_job
from scorer.operator.names import Object
from scorer.operator.reconcile import wanted_replicas
from scorer.operator.spec import CheckpointSpec, ServerSpec, amount
from scorer.operator.spec import read as read_spec

EXAMPLE = documents(MANIFESTS / "operator" / "example.yaml")
SHIP = {"image": "scorer-ship:0.1.0", "settings": {"delta": {"url": "s3://decisions/lake"}}}
SCALING = {"minReplicas": 2, "maxReplicas": 6}
SHADOW: dict[str, Any] = {
    "image": "scorer:0.1.0",
    "role": "shadow",
    "replicas": 1,
    "resources": {"requests": {"cpu": "4", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
    "settings": {
        "server": {"threads": 1, "observe_cpu": 1.0, "observe_queue": 8192},
        "identity": {
            "grants": [
                {"principal": "spiffe://scorer.internal/live", "roles": ["observe"]},
                {"principal": "spiffe://scorer.internal/platform", "roles": ["operate"]},
                {"principal": "spiffe://scorer.internal/operator", "roles": ["operate"]},
            ]
        },
    },
}
SHADOW_CHECKPOINTS = [
    {"server": "scorer-shadow", "checkpoint": "fraud.checkout", "kind": "score"},
    {"server": "scorer-shadow", "checkpoint": "action.authorise", "kind": "action"},
]


def plan(spec: Object, checkpoints: list[Object], name: str = "scorer") -> objects.ServerPlan:
    server = read_spec(ServerSpec, {"spec": spec})
    valid = [
        settings_files.Checkpoint(one["checkpoint"], read_spec(CheckpointSpec, {"spec": one}))
        for one in checkpoints
    ]
    return objects.ServerPlan(
        name,
        "default",
        "uid-1",
        server,
        settings_files.server_document(server, valid),
        settings_files.ship_document(server),
    )


def example(**changes: Any) -> objects.ServerPlan:
    server, *checkpoints = (copy.deepcopy(one["spec"]) for one in EXAMPLE)
    return plan({**server, **changes}, checkpoints)


def by_kind(built: list[Object]) -> dict[str, Object]:
    result = {one["kind"]: one for one in built}
    assert len(result) == len(built)
    return result


def agreed(built: Object, manifest: Object) -> None:
    """Compare an object with its manifest, apart from what only the operator adds."""
    built, manifest = copy.deepcopy(built), copy.deepcopy(manifest)
    for one in (built, manifest):
        del one["metadata"]
        template = one.get("spec", {}).get("template")
        if template is not None:
            template["metadata"]["annotations"].pop(names.CONFIG_ANNOTATION, None)
            template["metadata"]["labels"].pop(names.MANAGED_LABEL, None)
            for volume in template["spec"]["volumes"]:
                if "configMap" in volume:
                    volume["configMap"]["name"] = "settings"
            for part in (template["spec"]["volumes"], template["spec"]["containers"][0]["volumeMounts"]):
                part.sort(key=lambda volume: str(volume["name"]))
    assert built == manifest


@pytest.mark.parametrize(
    ("built", "file"),
    [(example(), "standalone.yaml"), (plan(SHADOW, SHADOW_CHECKPOINTS, "scorer-shadow"), "shadow.yaml")],
    ids=["standalone", "shadow"],
)
def test_the_objects_agree_with_the_manifests(built: objects.ServerPlan, file: str) -> None:
    workload = read(file)
    replicas = built.spec.fixed_replicas
    made = by_kind(objects.every_object(built, replicas=replicas, certificates=True))
    manifests = {one["kind"]: one for one in workload.documents}
    certificates = documents(MANIFESTS / "cert-manager/certificates.yaml")
    [manifests["Certificate"]] = [
        one
        for one in certificates
        if one["metadata"]["name"] == f"{built.server}-tls" and one["kind"] == "Certificate"
    ]
    made["Certificate"]["spec"]["issuerRef"]["kind"] = "Issuer"
    assert made.keys() == manifests.keys()
    for kind in manifests.keys() - {"ConfigMap"}:
        agreed(made[kind], manifests[kind])
    settings = config.parse(
        made["ConfigMap"]["data"]["scorer.toml"], base=Path("/etc/scorer"), environment={}
    )
    assert settings == workload.settings


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
def test_the_objects_are_valid_by_the_published_schemas(version: str) -> None:
    built = example(replicas=None, autoscaling=SCALING, ship={**SHIP, "credentialsSecret": "lake"})
    made = objects.every_object(built, replicas=None, certificates=False)
    owner = built.owner
    job = ship_job("scorer", built.spec, 2, name="a", namespace="default", config_map="b", owner=owner)
    for one in [*made, job]:
        kubernetes_validate.validate(one, version, strict=True)
    assert {one["kind"] for one in made} >= {"StatefulSet", "HorizontalPodAutoscaler", "PodDisruptionBudget"}


def test_every_container_is_confined() -> None:
    built = example(ship=SHIP)
    made = by_kind(objects.every_object(built, replicas=2, certificates=False))
    job = ship_job("scorer", built.spec, 0, name="a", namespace="default", config_map="b", owner=built.owner)
    for workload in (made["StatefulSet"], job):
        pod = workload["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
        for volume in pod["volumes"]:
            assert "emptyDir" not in volume or volume["emptyDir"]["sizeLimit"]


def test_the_shipper_starts_before_the_server_and_names_its_replica() -> None:
    built = example(ship={**SHIP, "credentialsSecret": "lake"})
    made = by_kind(objects.every_object(built, replicas=2, certificates=False))
    [ship] = made["StatefulSet"]["spec"]["template"]["spec"]["initContainers"]
    assert ship["restartPolicy"] == "Always"
    assert ship["command"][-2:] == ["--server", "$(POD_NAME)"]
    assert ship["envFrom"] == [{"secretRef": {"name": "lake"}}]
    job = ship_job("scorer", built.spec, 1, name="a", namespace="default", config_map="b", owner=built.owner)
    [container] = job["spec"]["template"]["spec"]["containers"]
    # The id of the sidecar's pod, so that the records continue at the position of that id.
    assert container["command"][-3:] == ["--server", "scorer-1", "--once"]
    claims = [
        v["persistentVolumeClaim"]["claimName"]
        for v in job["spec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in v
    ]
    assert claims == ["data-scorer-1"]
    open_ports = made["NetworkPolicy"]["spec"]["ingress"][1]["ports"]
    assert {"port": names.SHIP_PORT} in open_ports


def test_the_shippers_file_is_valid_in_its_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scorer.ship.settings import load

    ship = {
        **SHIP,
        "settings": {"delta": {"url": "s3://a/b", "options": {"AWS_SECRET_ACCESS_KEY": "$SECRET"}}},
    }
    built = example(ship=ship)
    assert built.ship is not None
    file = tmp_path / "ship.toml"
    file.write_text(built.ship)
    monkeypatch.setenv("SECRET", "of the container")
    settings = load(file)
    assert settings.ship.log == Path(names.LOG_DIR)
    assert settings.delta.options == {"AWS_SECRET_ACCESS_KEY": "of the container"}


def test_the_autoscaler_follows_the_pressure_and_removes_replicas_slowly() -> None:
    built = example(replicas=None, autoscaling={**SCALING, "pressure": "1", "cpuPercent": 70})
    made = by_kind(objects.every_object(built, replicas=None, certificates=False))
    spec = made["HorizontalPodAutoscaler"]["spec"]
    pods = [one["pods"] for one in spec["metrics"] if one["type"] == "Pods"]
    assert pods == [
        {"metric": {"name": "scorer_pressure"}, "target": {"type": "AverageValue", "averageValue": "1"}}
    ]
    assert spec["behavior"]["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 300}]
    assert "replicas" not in made["StatefulSet"]["spec"]
    # The name of the metric is that which the server exposes.
    assert "`scorer_pressure`" in (Path(__file__).parents[2] / "docs/metrics.md").read_text()


def test_the_pod_waits_for_a_longer_drain() -> None:
    server, *checkpoints = (copy.deepcopy(one["spec"]) for one in EXAMPLE)
    server["settings"]["server"] = {"drain_seconds": 60}
    made = by_kind(objects.every_object(plan(server, checkpoints), replicas=2, certificates=False))
    assert made["StatefulSet"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 125


def test_new_settings_have_a_new_name_and_restart_the_pods() -> None:
    before, after = (
        example(),
        example(settings={**EXAMPLE[0]["spec"]["settings"], "log": {"segment_mb": 128}}),
    )
    assert before.config_map != after.config_map
    templates = [objects.stateful_set(one, 2)["spec"]["template"] for one in (before, after)]
    first, second = (one["metadata"]["annotations"][names.CONFIG_ANNOTATION] for one in templates)
    assert first != second
    assert objects.stateful_set(example(), 2) == objects.stateful_set(before, 2)


def refused(spec: Object, checkpoints: list[Object] | None = None) -> str:
    others = [one["spec"] for one in EXAMPLE[1:]] if checkpoints is None else checkpoints
    with pytest.raises(OperatorError) as caught:
        plan(spec, others)
    message = str(caught.value)
    assert "\n" not in message
    return message


BASE: Object = EXAMPLE[0]["spec"]
FRAUD: Object = EXAMPLE[1]["spec"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"image": "a b"}, 'spec.image: "a b" is not an image; write it as name:version'),
        ({"image": 5}, 'spec.image: 5 is not a text; write it in "quotes"'),
        ({"role": "primary"}, "spec.role: \"primary\" is not one of 'live' or 'shadow'"),
        ({"replicas": 0}, "spec.replicas: 0 is out of range; it must be at least 1"),
        ({"autoscaling": SCALING}, "replicas and autoscaling are both set; remove one of them"),
        (
            {"replicas": None, "autoscaling": {"minReplicas": 3, "maxReplicas": 2}},
            "maxReplicas = 2 is below minReplicas = 3",
        ),
        ({"imagePullPolice": "Always"}, 'spec.imagePullPolice: unknown key; did you mean "imagePullPolicy"?'),
        (
            {"storage": {"whenDeleted": "DeleteShipped"}},
            "storage.whenDeleted is DeleteShipped and ship is not set",
        ),
        (
            {"storage": {"size": "much"}},
            'spec.storage.size: "much" is not a quantity; write a number such as 2, 500m or 8Gi',
        ),
        (
            {"resources": {"requests": {"memory": "2Gi"}}},
            "spec.resources: limits.memory = 512Mi is below requests.memory = 2Gi; raise the limit",
        ),
        (
            {"settings": {"server": {"threads": 9}}},
            "spec.settings.server.threads: 9 threads exceed resources.requests.cpu = 2",
        ),
        (
            {"settings": {"server": {"listen": "0.0.0.0:1"}}},
            'spec.settings.server.listen: the operator sets it to "0.0.0.0:7700"; remove it',
        ),
        ({"settings": {"server": 5}}, "spec.settings.server: it is not a table"),
        ({"settings": {"log": {"queue": None}}}, "spec.settings.log.queue: the value is null"),
        ({"settings": {"nonsense": {"a": 1}}}, "spec.settings.nonsense: unknown key"),
        (
            {"settings": {"log": {"segment_mb": "many"}}},
            'spec.settings.log.segment_mb: "many" is not a whole number',
        ),
        ({"settings": {"checkpoints": {}}}, "spec.settings.checkpoints: a server has no checkpoints here"),
        ({"settings": {}}, "identity.grants is empty"),
        (
            {"ship": {"image": "s", "settings": {}}},
            "spec.ship.settings: neither delta.url nor kafka.servers is set",
        ),
        (
            {"ship": {"image": "s", "settings": {"delta": {"url": 5}}}},
            "spec.ship.settings.delta.url: 5 is not a text",
        ),
        (
            {"ship": {"image": "s", "settings": {"ship": {"server": "a"}, "delta": {"url": "s3://a/b"}}}},
            "spec.ship.settings.ship.server: the operator sets it to the name of the pod; remove it",
        ),
    ],
)
def test_a_nonsense_server_is_refused_with_one_line(changes: Object, reason: str) -> None:
    assert reason in refused({**BASE, **changes})


@pytest.mark.parametrize(
    ("checkpoints", "reason"),
    [
        ([], "no ScorerCheckpoint names this server; create one whose spec.server is its name"),
        (
            [{**FRAUD, "alias": None}],
            "ScorerCheckpoint fraud.checkout: alias: required, but not set; add alias",
        ),
        ([{**FRAUD, "kind": "guess"}], "spec.kind: \"guess\" is not one of 'score' or 'action'"),
        ([{**FRAUD, "p99Ms": 0}], "spec.p99Ms: 0 is out of range; it must be above 0"),
        (
            [{**FRAUD, "fallback": {"action": "a"}}],
            "ScorerCheckpoint fraud.checkout: fallback: the fallback of a checkpoint",
        ),
        (
            [{**FRAUD, "settings": {"tier": 7}}],
            "ScorerCheckpoint fraud.checkout: tier: 7 is out of range; it must be at most 3",
        ),
        (
            [{**FRAUD, "settings": {"alias": "a@b"}}],
            "ScorerCheckpoint fraud.checkout: spec.settings.alias: it is a key of spec",
        ),
        ([FRAUD, FRAUD], "checkpoint fraud.checkout is also defined by ScorerCheckpoint fraud.checkout"),
        ([{"checkpoint": "a"}], "spec.server: required, but not set; add server (and 1 more)"),
    ],
)
def test_a_nonsense_checkpoint_is_refused_with_one_line(checkpoints: list[Object], reason: str) -> None:
    assert reason in refused(BASE, checkpoints)


def test_characters_outside_the_basic_plane_survive_the_settings_file() -> None:
    text = settings_files.dump(
        {"a": {"b": '\U0001f600 ü " \\', "c": [1, {"d": True}], "e": {"f": {"g": {"h": 1}}}}}
    )
    import tomllib

    assert tomllib.loads(text) == {
        "a": {"b": '\U0001f600 ü " \\', "c": [1, {"d": True}], "e": {"f": {"g": {"h": 1}}}}
    }


@pytest.mark.parametrize(
    ("text", "value"), [("500m", 0.5), ("2", 2.0), ("1.5", 1.5), ("2Gi", 2.0**31), ("3k", 3000.0)]
)
def test_quantities_are_numbers(text: str, value: float) -> None:
    assert amount(text) == value


def test_the_autoscalers_number_of_replicas_is_left_alone() -> None:
    scaled = read_spec(ServerSpec, {"spec": {"image": "a", "autoscaling": SCALING}})
    fixed = read_spec(ServerSpec, {"spec": {"image": "a", "replicas": 3}})

    def live(replicas: int, manager: str) -> Object:
        fields = [{"manager": manager, "fieldsV1": {"f:spec": {"f:replicas": {}}}}]
        return {"metadata": {"managedFields": fields}, "spec": {"replicas": replicas}}

    assert wanted_replicas(fixed, None) == wanted_replicas(fixed, live(5, "kubectl")) == 3
    assert wanted_replicas(scaled, None) == 2
    # While the operator owns the field, it keeps it within the bounds. Without an owner it would become 1.
    assert wanted_replicas(scaled, live(4, names.MANAGER)) == 4
    assert wanted_replicas(scaled, live(9, names.MANAGER)) == 6
    assert wanted_replicas(scaled, live(4, "kube-controller-manager")) is None


def test_the_result_of_a_job() -> None:
    def job(kind: str) -> Object:
        return {
            "status": {"conditions": [{"type": kind, "status": "True", "reason": "BackoffLimitExceeded"}]}
        }

    assert job_result(None) == job_result({}) == (None, "")
    assert job_result(job("Complete")) == (True, "")
    assert job_result(job("Failed")) == (False, "BackoffLimitExceeded")


def test_the_schemas_have_the_keys_of_the_types() -> None:
    """A key in one of them only would be dropped by the API server, or be refused by the operator."""
    found = documents(MANIFESTS / "operator" / "crds.yaml")
    for document, model in zip(found, (ServerSpec, CheckpointSpec), strict=True):
        schema = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        _same_keys(schema, model)


def _same_keys(schema: Object, model: Any) -> None:
    from pydantic import BaseModel

    from scorer.config.problems import model_of

    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    assert set(schema["properties"]) == set(fields), model
    for name, field in fields.items():
        inner = model_of(field.annotation)
        part = schema["properties"][name]
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            _same_keys(part, inner)
        elif "default" in part:
            assert part["default"] == field.get_default(call_default_factory=True), name


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
def test_the_operators_own_objects_are_valid_and_confined(version: str) -> None:
    own = documents(MANIFESTS / "operator" / "operator.yaml")
    for one in own:
        kubernetes_validate.validate(one, version, strict=True)
    [deployment] = [one for one in own if one["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["command"][:2] == ["scorer", "operator"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"]["memory"]
    # Two processes would do the same work at the same time.
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    [role] = [one for one in own if one["kind"] == "ClusterRole"]
    for rule in role["rules"]:
        assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
        assert not {"secrets", "pods/exec", "roles", "clusterroles"} & set(rule["resources"])


def test_the_example_is_what_the_documentation_shows() -> None:
    for one in EXAMPLE:
        assert yaml.safe_load(yaml.safe_dump(one)) == one
        assert one["apiVersion"] == names.API_VERSION
