"""Tests of the manifests in deploy/kubernetes: valid, restricted, and consistent with the settings."""

from __future__ import annotations

import tomllib
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml
from manifests import MANIFESTS, ROOT, Workload, documents, files, read

from scorer import config
from scorer.release.discovery_settings import DiscoverySettings
from scorer.release.fleet.slices import EndpointSlices

# 1.29 is the first version with native sidecars by default. The others are the newest known and one between.
VERSIONS = ["1.29", "1.33", "1.37"]

every_workload = pytest.mark.parametrize(
    "workload",
    [read("sidecar.yaml"), read("standalone.yaml"), read("shadow.yaml")],
    ids=lambda workload: workload.file,
)


def port_of(address: str | None) -> int:
    assert address is not None
    return int(address.rpartition(":")[2])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_manifests_are_valid_by_the_published_schemas(path: Path, version: str) -> None:
    for document in documents(path):
        # The check is strict: a field that Kubernetes does not know is an error and is not ignored.
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schemas_refuse_a_misspelt_field() -> None:
    workload = read("sidecar.yaml")
    workload.pod["initContainers"][0]["restartPolice"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(workload.document, VERSIONS[-1], strict=True)


@every_workload
def test_no_container_of_the_pod_has_more_rights_than_it_needs(workload: Workload) -> None:
    pod = workload.pod
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["runAsGroup"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not any(pod.get(switch) for switch in ("hostNetwork", "hostPID", "hostIPC"))
    assert not any("hostPath" in volume for volume in pod["volumes"])
    for container in workload.containers:
        own = container["securityContext"]
        assert own["readOnlyRootFilesystem"] is True, container["name"]
        assert own["allowPrivilegeEscalation"] is False, container["name"]
        assert own["capabilities"] == {"drop": ["ALL"]}, container["name"]
        assert not own.get("privileged"), container["name"]


def test_no_pod_of_any_manifest_is_less_confined() -> None:
    templates = []
    for path in files():
        for document in documents(path):
            spec = document.get("spec", {})
            template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
            if template is not None:
                templates.append(
                    (f"{path.name} {document['kind']} {document['metadata']['name']}", template["spec"])
                )
    assert len(templates) == 5
    for name, pod in templates:
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["limits"]["memory"], name
        for volume in pod["volumes"]:
            # Data that is written to the disk of the node is bounded.
            assert "emptyDir" not in volume or volume["emptyDir"]["sizeLimit"], f"{name}: {volume['name']}"


@every_workload
def test_images_are_named_by_version(workload: Workload) -> None:
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert workload.scorer["image"] == f"scorer:{version}"
    for container in workload.containers:
        _, _, tag = container["image"].partition(":")
        assert tag not in ("", "latest"), container["image"]


@every_workload
def test_memory_is_bounded_and_the_cpu_is_not_throttled(workload: Workload) -> None:
    resources = workload.scorer["resources"]
    assert set(resources["requests"]) == {"cpu", "memory"}
    assert set(resources["limits"]) == {"memory"}
    assert workload.settings.server.threads <= float(resources["requests"]["cpu"])


@every_workload
def test_probes_use_the_listener_that_clients_do_not_use(workload: Workload) -> None:
    listen = workload.settings.server.metrics_listen
    startup, readiness, liveness = (
        workload.scorer[kind]["httpGet"] for kind in ("startupProbe", "readinessProbe", "livenessProbe")
    )
    assert {probe["port"] for probe in (startup, readiness, liveness)} == {port_of(listen)}
    # A kubelet connects to the address of the pod.
    assert listen is not None
    assert not listen.startswith(("127.", "[::1]"))
    assert readiness["path"] == "/ready"
    # A restart does not help a server that has no bundle or that drains.
    assert startup["path"] == liveness["path"] == "/live"


@every_workload
def test_prometheus_finds_the_metrics(workload: Workload) -> None:
    annotations = workload.template["metadata"]["annotations"]
    assert annotations["prometheus.io/scrape"] == "true"
    assert annotations["prometheus.io/path"] == "/metrics"
    port = port_of(workload.settings.server.metrics_listen)
    assert annotations["prometheus.io/port"] == str(port)
    assert port in {exposed["containerPort"] for exposed in workload.scorer["ports"]}
    assert port in workload.open_ports


@every_workload
def test_every_path_in_the_settings_is_on_a_volume(workload: Workload) -> None:
    settings = workload.settings
    mounted = workload.scorer["volumeMounts"]
    mounts = {PurePosixPath(m["mountPath"]): bool(m.get("readOnly")) for m in mounted}
    assert len(mounts) == len(mounted)

    def is_read_only(path: Path | None) -> bool:
        assert path is not None
        inside = [mount for mount in mounts if PurePosixPath(path).is_relative_to(mount)]
        assert inside, f"{path} is on the read-only file system of the container"
        return mounts[max(inside, key=lambda mount: len(mount.parts))]

    assert not is_read_only(settings.server.state_dir)
    assert not is_read_only(settings.log.dir)
    assert is_read_only(settings.registry.path)
    if settings.server.uds is not None:
        assert not is_read_only(settings.server.uds)


@every_workload
def test_only_metrics_are_plaintext_beyond_loopback(workload: Workload) -> None:
    server = workload.settings.server
    assert not server.allow_remote, "a listener without TLS must be an error at the start"
    assert server.tls.knows_clients
    assert (server.tls.client_certificates, server.tls.min_version) == ("required", "1.3")
    assert workload.settings.identity.enabled, "everything that is not granted must be denied"
    assert server.control_listen.startswith("127.")
    for principal in (grant.principal for grant in workload.settings.identity.grants):
        assert "*" not in principal


@every_workload
def test_the_certificates_are_a_secret_that_cert_manager_creates(workload: Workload) -> None:
    tls = workload.settings.server.tls
    assert tls.certificate is not None
    [mount] = [m for m in workload.scorer["volumeMounts"] if m["mountPath"] == str(tls.certificate.parent)]
    assert mount["readOnly"] is True
    [volume] = [v for v in workload.pod["volumes"] if v["name"] == mount["name"]]
    # Readable by root and by the group of the pod.
    assert volume["secret"]["defaultMode"] == 0o440
    assert workload.pod["securityContext"]["fsGroup"] == workload.pod["securityContext"]["runAsGroup"]
    result = documents(MANIFESTS / "cert-manager/certificates.yaml")
    certificates = {d["spec"]["secretName"]: d["spec"] for d in result if d["kind"] == "Certificate"}
    own = certificates[volume["secret"]["secretName"]]
    assert "server auth" in own["usages"]
    assert "localhost" in own["dnsNames"] and "127.0.0.1" in own["ipAddresses"], (
        "`kubectl port-forward` needs it"
    )
    if services := [d["metadata"]["name"] for d in workload.documents if d["kind"] == "Service"]:
        assert set(services) <= set(own["dnsNames"])
    issued = {uri for spec in certificates.values() for uri in spec.get("uris", ())}
    granted = {grant.principal for grant in workload.settings.identity.grants}
    assert {principal for principal in granted if principal.startswith("spiffe:")} <= issued
    # Callers on the Unix socket are identified by their user and have no certificate.
    others = {principal for principal in granted if not principal.startswith("spiffe:")}
    user = workload.pod["securityContext"]["runAsUser"]
    assert others == ({f"uid:{user}"} if workload.settings.server.uds else set())


def test_a_live_server_may_send_to_the_pool() -> None:
    [certificate] = [
        d["spec"]
        for d in documents(MANIFESTS / "cert-manager/certificates.yaml")
        if d["kind"] == "Certificate" and d["metadata"]["name"] == "scorer-tls"
    ]
    [principal] = certificate["uris"]
    assert {"client auth", "server auth"} == set(certificate["usages"])
    grants = {grant.principal: grant.roles for grant in read("shadow.yaml").settings.identity.grants}
    assert grants[principal] == ["observe"]


def _bytes(quantity: str) -> int:
    units = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
    return int(quantity[:-2]) * units[quantity[-2:]]


def test_a_full_log_cannot_evict_the_checkout() -> None:
    workload = read("sidecar.yaml")
    log = workload.settings.log
    assert log.dir is not None and log.retain_mb is not None
    [mount] = [m for m in workload.scorer["volumeMounts"] if log.dir.is_relative_to(m["mountPath"])]
    [volume] = [v for v in workload.pod["volumes"] if v["name"] == mount["name"]]
    assert "emptyDir" not in volume, "the kubelet evicts a pod whose emptyDir is above its sizeLimit"
    [template] = [volume["ephemeral"]["volumeClaimTemplate"]]
    assert log.retain_mb << 20 <= _bytes(template["spec"]["resources"]["requests"]["storage"]) * 0.8


@every_workload
def test_the_pod_waits_for_the_drain(workload: Workload) -> None:
    before = workload.scorer.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    # Twice the time of the drain, because sealing the log and exiting may take as long again.
    needed = before + 2 * workload.settings.server.drain_seconds
    assert workload.pod["terminationGracePeriodSeconds"] >= needed


@every_workload
def test_selectors_match_the_pods(workload: Workload) -> None:
    labels = workload.template["metadata"]["labels"].items()
    assert workload.document["spec"]["selector"]["matchLabels"].items() <= labels
    assert workload.only("PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= labels
    assert workload.only("NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= labels
    assert workload.pod["serviceAccountName"] == workload.only("ServiceAccount")["metadata"]["name"]
    assert workload.open_ports <= {port["containerPort"] for c in workload.containers for port in c["ports"]}


@every_workload
def test_the_registry_is_on_its_volume_claim(workload: Workload) -> None:
    declared = {d["metadata"]["name"] for d in documents(MANIFESTS / "registry.yaml")}
    claims = [v["persistentVolumeClaim"] for v in workload.pod["volumes"] if "persistentVolumeClaim" in v]
    assert {claim["claimName"] for claim in claims} == declared


def test_a_sidecar_shares_only_its_socket() -> None:
    workload = read("sidecar.yaml")
    [scorer] = workload.pod["initContainers"]
    assert scorer["restartPolicy"] == "Always"
    [checkout] = workload.pod["containers"]
    uds = workload.settings.server.uds
    assert uds is not None
    assert {"name": "SCORER_TARGET", "value": f"unix://{uds}"} in checkout["env"]
    ours, theirs = ({m["name"]: m["mountPath"] for m in c["volumeMounts"]} for c in (scorer, checkout))
    assert ours.keys() & theirs.keys() == {"socket"}
    assert ours["socket"] == theirs["socket"] == str(uds.parent)
    assert workload.settings.server.listen is None, "no scoring over the network"


@pytest.mark.parametrize("file", ["standalone.yaml", "shadow.yaml"])
def test_every_replica_has_its_own_log(file: str) -> None:
    workload = read(file)
    assert workload.document["kind"] == "StatefulSet"
    spec = workload.document["spec"]
    [claim] = spec["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    service = workload.only("Service")
    assert service["metadata"]["name"] == spec["serviceName"]
    # Callers balance their load themselves. A sender to the pool keeps one connection, to any replica.
    assert service["spec"].get("clusterIP") == ("None" if file == "standalone.yaml" else None)
    assert service["spec"]["selector"].items() <= workload.template["metadata"]["labels"].items()
    ports = {port["name"] for port in workload.scorer["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


@pytest.mark.parametrize("file", ["sidecar.yaml", "standalone.yaml"])
def test_live_servers_can_reach_the_shadow_pool(file: str) -> None:
    live, pool = read(file), read("shadow.yaml")
    assert pool.settings.server.role == "shadow"
    assert pool.settings.aliases == []
    assert pool.settings.checkpoints.keys() == live.settings.checkpoints.keys()
    kinds = {name: checkpoint.kind for name, checkpoint in pool.settings.checkpoints.items()}
    assert kinds == {name: checkpoint.kind for name, checkpoint in live.settings.checkpoints.items()}
    # The commented settings must be valid when they are uncommented.
    [line] = [line for line in live.text.splitlines() if line.strip().startswith("# shadow_pool")]
    text = live.text.replace(line, line.replace("# ", ""))
    address = config.parse(text, base=Path("/etc/scorer"), environment={}).server.shadow_pool
    service = pool.only("Service")
    [port] = service["spec"]["ports"]
    assert address == f"{service['metadata']['name']}:{port['port']}"
    [rule] = [r for r in pool.only("NetworkPolicy")["spec"]["ingress"] if "from" in r]
    assert rule["ports"] == [{"port": port_of(pool.settings.server.listen)}]
    [peer] = rule["from"]
    assert peer["podSelector"]["matchLabels"].items() <= live.template["metadata"]["labels"].items()
    # One thread per lane, and one more that reads.
    assert pool.settings.server.observe_cpu * 3 <= float(pool.scorer["resources"]["requests"]["cpu"])


def test_the_platform_may_read_endpoint_slices_and_nothing_else() -> None:
    account, role, binding = documents(MANIFESTS / "platform-discovery.yaml")
    assert [one["kind"] for one in (account, role, binding)] == ["ServiceAccount", "Role", "RoleBinding"]
    # What the platform lists and watches.
    url = urlsplit(EndpointSlices(DiscoverySettings(name="live", service="payments/scorer"))._url)
    _, _, group, _, _, namespace, resource = url.path.split("/")
    assert namespace == "payments"
    assert role["rules"] == [
        {"apiGroups": [group], "resources": [resource], "verbs": ["get", "list", "watch"]}
    ]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role["metadata"]["name"]}
    assert binding["roleRef"] == reference
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["metadata"]["name"]}]
    # Other pods with the account do not get its token.
    assert account["automountServiceAccountToken"] is False
    text = (ROOT / "docs/kubernetes.md").read_text()
    assert f"`serviceAccountName: {account['metadata']['name']}`" in text


def test_the_kustomizations_name_existing_files_and_fields() -> None:
    """`make test-kube` builds them; this test runs without kustomize."""
    for file in sorted(MANIFESTS.parent.rglob("kustomization.yaml")):
        [document] = documents(file)
        assert document["kind"] == "Kustomization"
        for resource in document["resources"]:
            assert (file.parent / resource).exists(), f"{file}: {resource}"
    [overlay] = documents(MANIFESTS.parent / "kustomize/example/kustomization.yaml")
    workload = read("standalone.yaml")
    assert {one["name"] for one in overlay["replicas"]} == {workload.document["metadata"]["name"]}
    assert {one["name"] for one in overlay["images"]} == {workload.scorer["image"].partition(":")[0]}
    for patch in overlay["patches"]:
        assert patch["target"] == {"kind": "StatefulSet", "name": workload.document["metadata"]["name"]}
        for step in yaml.safe_load(patch["patch"]):
            *path, last = step["path"].strip("/").split("/")
            at = workload.document
            for key in path:
                at = at[int(key)] if isinstance(at, list) else at[key]
            assert (last in at) == (step["op"] == "replace"), step["path"]
