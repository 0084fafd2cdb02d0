"""Write software bills of materials of the wheels and the images as CycloneDX 1.6 (`make sbom`).

The crates come from Cargo's resolution for the wheel's processor, the Python packages of a wheel from the
pinned requirements of a server. The Python and Debian packages of an image are those that it contains. Each
document is validated against the schema and written to target/sbom. The same commit produces the same
documents.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from image import output
from image_trials import TRIALS
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "target" / "sbom"
_PACKAGE = re.compile(r"opt/scorer/lib/python[0-9.]+/site-packages/([^/]+?)-([^-/]+)\.dist-info/METADATA")
_FIELD = re.compile(r"^(Package|Version|Architecture|Status): (.*)$", flags=re.MULTILINE)
TARGETS = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


def main() -> int:
    """Write one document for each wheel, and one for each image that there is."""
    OUT.mkdir(parents=True, exist_ok=True)
    server = list(_python())
    for machine, target in TARGETS.items():
        _write(f"wheel-{machine}", ComponentType.LIBRARY, [*_crates(target), *server])
    for name in TRIALS:
        image = output(name)
        if debian := list(_debian(image)):
            components = [*_crates(TARGETS["x86_64"]), *_installed(image), *debian]
            _write(image.name, ComponentType.CONTAINER, components)
        else:
            print(f"NOT RUN  {name}: {image.relative_to(ROOT)} is not there; `make images` builds it")
    return 0


def _crates(target: str) -> Iterator[Component]:
    """Yield the crates that are compiled into the extension, without those of tests."""
    said = subprocess.run(
        ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found = json.loads(said)
    packages = {package["id"]: package for package in found["packages"]}
    edges = {
        node["id"]: [
            dep["pkg"] for dep in node["deps"] if any(k["kind"] in (None, "build") for k in dep["dep_kinds"])
        ]
        for node in found["resolve"]["nodes"]
    }
    [start] = [key for key, package in packages.items() if package["name"] == "scorer-bindings"]
    reached, waiting = {start}, [start]
    while waiting:
        for other in edges[waiting.pop()]:
            if other is not None and other not in reached:
                reached.add(other)
                waiting.append(other)
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    sums = {(entry["name"], entry["version"]): entry.get("checksum") for entry in locked}
    for package in sorted(
        (packages[key] for key in reached), key=lambda each: (each["name"], each["version"])
    ):
        if package["source"] is None:
            continue  # our own
        yield _component(
            "cargo", package["name"], package["version"], sums[package["name"], package["version"]],
            (package["license"] or "").replace("/", " OR "),
        )  # fmt: skip


def _python() -> Iterator[Component]:
    """Yield the pinned Python packages of a server."""
    text = (ROOT / "requirements" / "serve.txt").read_text()
    for name, version in re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", text, flags=re.MULTILINE):
        yield _component("pypi", name, version, None, "")


def _installed(image: Path) -> Iterator[Component]:
    """Yield the Python packages of an image, without our own."""
    for layer in _layers(image):
        for match in filter(None, map(_PACKAGE.fullmatch, layer.getnames())):
            name = re.sub(r"[-_.]+", "-", match[1]).lower()
            if name != "scorer":
                yield _component("pypi", name, match[2], None, "")


def _debian(image: Path) -> Iterator[Component]:
    """Yield the Debian packages in the package database of an image."""
    for layer in _layers(image):
        try:
            member = layer.extractfile("var/lib/dpkg/status")
        except KeyError:
            continue
        status = member.read().decode() if member else ""
        for entry in status.split("\n\n"):
            fields = dict(_FIELD.findall(entry))
            if fields.get("Status", "").endswith(" installed"):
                yield Component(
                    type=ComponentType.LIBRARY, name=fields["Package"], version=fields["Version"],
                    bom_ref=f"deb {fields['Package']} {fields['Version']} {fields['Architecture']}",
                    purl=PackageURL(
                        "deb", "debian", fields["Package"], fields["Version"],
                        {"arch": fields["Architecture"]},
                    ),
                )  # fmt: skip
        return


def _layers(image: Path) -> Iterator[tarfile.TarFile]:
    """Yield the layers of an OCI directory, which has other blobs, too."""
    for blob in sorted((image / "blobs" / "sha256").glob("*")) if image.is_dir() else ():
        try:
            layer = tarfile.open(blob)  # noqa: SIM115 - it is closed after its use
        except (tarfile.TarError, OSError):
            continue
        with layer:
            yield layer


def _component(kind: str, name: str, version: str, sha256: str | None, licence: str) -> Component:
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        bom_ref=f"{kind} {name} {version}",
        purl=PackageURL(kind, None, name, version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else [],
        licenses=[LicenseFactory().make_from_string(licence)] if licence else [],
    )


def _write(name: str, kind: ComponentType, components: Iterable[Component]) -> None:
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    bom = Bom(components=components)
    bom.metadata.component = Component(type=kind, name="scorer", version=version, bom_ref="scorer")
    # The time and the serial number depend on the commit, so that builds of one commit do not differ.
    bom.metadata.timestamp = datetime.fromtimestamp(_commit_time(), UTC)
    bom.serial_number = uuid5(NAMESPACE_URL, f"scorer {version} {name} {_commit_time()}")
    bom.register_dependency(bom.metadata.component, bom.components)
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    if wrong := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"error: {name} is not a valid CycloneDX document: {wrong}")
    path = OUT / f"{name}.cdx.json"
    path.write_text(text + "\n")
    counts: dict[str, Any] = {}
    for component in bom.components:
        kind_of = component.purl.type if component.purl else "other"
        counts[kind_of] = counts.get(kind_of, 0) + 1
    print(
        f"{path.relative_to(ROOT)}: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    )


def _commit_time() -> int:
    said = subprocess.run(
        ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return int(said or 1_700_000_000)


if __name__ == "__main__":
    sys.exit(main())
