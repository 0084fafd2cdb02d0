"""The manifests in deploy/kubernetes: their pods, and the settings that they contain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from scorer import config

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "deploy/kubernetes"

Document = dict[str, Any]


def files() -> list[Path]:
    """The files with objects, without that of kustomize."""
    return sorted(path for path in MANIFESTS.glob("*.yaml") if path.name != "kustomization.yaml")


def documents(path: Path) -> list[Document]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


@dataclass(frozen=True)
class Workload:
    """A pod template, and the file that contains it."""

    file: str
    documents: list[Document]
    document: Document

    @property
    def template(self) -> Document:
        return self.document["spec"]["template"]

    @property
    def pod(self) -> Document:
        return self.template["spec"]

    @property
    def containers(self) -> list[Document]:
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def scorer(self) -> Document:
        [container] = [c for c in self.containers if c["image"].startswith("scorer:")]
        return container

    @property
    def settings(self) -> config.Settings:
        """The settings that the scorer reads: the ConfigMap that is mounted at /etc/scorer."""
        return config.parse(self.text, base=Path("/etc/scorer"), environment={})

    @property
    def text(self) -> str:
        """The same settings as text."""
        [mount] = [m for m in self.scorer["volumeMounts"] if m["mountPath"] == "/etc/scorer"]
        [volume] = [v for v in self.pod["volumes"] if v["name"] == mount["name"]]
        name = volume["configMap"]["name"]
        [config_map] = [
            d for d in self.documents if (d["kind"], d["metadata"]["name"]) == ("ConfigMap", name)
        ]
        return str(config_map["data"]["scorer.toml"])

    def only(self, kind: str) -> Document:
        [document] = [d for d in self.documents if d["kind"] == kind]
        return document

    @property
    def open_ports(self) -> set[int]:
        """The ports to which the network policy allows connections."""
        rules = self.only("NetworkPolicy")["spec"]["ingress"]
        return {port["port"] for rule in rules for port in rule["ports"]}


def read(file: str) -> Workload:
    result = documents(MANIFESTS / file)
    [document] = [d for d in result if "template" in d.get("spec", {})]
    return Workload(file, result, document)
