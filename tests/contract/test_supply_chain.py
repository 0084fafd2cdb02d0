"""Tests that downloads are pinned by hash, and that `make image` and `make audit` match their files."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from dockerfile import IMAGES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("image_script", ROOT / "scripts" / "image.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in ("trial", "image_trials"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("lock", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.name)
def test_every_python_package_has_a_version_and_a_hash(lock: Path) -> None:
    if lock.name == "overrides.txt":
        return
    for block in re.split(r"\n(?=[a-z0-9])", lock.read_text().strip()):
        if not block.startswith("#"):
            assert re.match(r"[a-zA-Z0-9._-]+(\[[^]]+\])?(==| @ )\S+", block), block[:80]
            assert "--hash=sha256:" in block, block[:80]


def pins(lock: str) -> dict[str, str]:
    text = (ROOT / "requirements" / lock).read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", text, flags=re.MULTILINE))


def test_make_lock_updates_every_lock_file() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\nlock: ")[2].partition("\n\n")[0]
    named = set(re.findall(r"[\w-]+", recipe))
    assert "peers-*.in" in recipe
    for wanted in (ROOT / "requirements").glob("*.in"):
        assert wanted.stem in named or wanted.stem.startswith("peers-"), (
            f"make lock does not update {wanted.name}"
        )


@pytest.mark.parametrize(
    "lock", ["bench.txt", "build.txt", "learning.txt", "operator.txt", "platform.txt", "ship.txt"]
)
def test_additional_packages_have_the_versions_of_the_development_packages(lock: str) -> None:
    own, shared = pins(lock), pins("dev.txt")
    # Packages of which the requirements need an older version.
    wanted = (ROOT / "requirements" / lock).with_suffix(".in").read_text()
    older = set(re.findall(r"^([a-z0-9-]+)<", wanted, flags=re.MULTILINE))
    names = own.keys() & shared.keys() - older
    assert names
    assert {name: own[name] for name in names} == {name: shared[name] for name in names}


def test_every_crate_has_a_checksum() -> None:
    own = {tomllib.loads(path.read_text())["package"]["name"] for path in ROOT.glob("rust/*/Cargo.toml")}
    for package in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]:
        assert package["name"] in own or re.fullmatch(r"[0-9a-f]{64}", package["checksum"]), package["name"]


def test_the_clients_for_other_languages_have_pinned_dependencies() -> None:
    clients = ROOT / "examples" / "clients"
    packages = json.loads((clients / "node" / "package-lock.json").read_text())["packages"]
    assert len(packages) > 2
    assert all(entry["integrity"].startswith("sha512-") for name, entry in packages.items() if name)
    for line in (clients / "go" / "go.sum").read_text().splitlines():
        assert re.fullmatch(r"\S+ v\S+ h1:\S{43}=", line), line
    pom = (clients / "java" / "pom.xml").read_text()
    blocks = re.findall(r"<(dependency|plugin|binaryMavenPlugin)>(.*?)</\1>", pom, flags=re.DOTALL)
    assert len(blocks) > 6
    for _, block in blocks:
        version = re.search(r"<version>(?:[0-9.]+|\$\{[\w-]+\.version\})</version>", block)
        assert version, block
    assert set(re.findall(r"<[\w-]+\.version>([^<]*)<", pom)) <= set(re.findall(r"\b\d+(?:\.\d+)+\b", pom))
    for line in (clients / "java" / "lib.sha256").read_text().splitlines():
        assert re.fullmatch(r"[0-9a-f]{64}  \S+\.jar", line), line


def test_what_ci_downloads_beside_packages_is_checked_against_a_hash() -> None:
    text = (ROOT / ".ci" / "run").read_text()
    assert not re.search(r"\b(curl|wget)\b", text)
    downloads = re.findall(r"apt-get download\b[^|}]*", text)
    assert all('"prometheus=$version"' in each for each in downloads)
    assert re.search(r"sum=[0-9a-f]{64}\b", text)
    assert "sha256sum --check" in text


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_is_built_from_the_dockerfile_without_its_compiler(image: ModuleType, name: str) -> None:
    result = image.stages_of((ROOT / "deploy" / "Dockerfile").read_text(), name)
    assert re.findall(r"(?m)^FROM .* AS (\w+)$", result) == ["packages", "common", name]
    assert "--from=wheel" not in result
    assert "COPY wheels /wheels" in result
    assert result.index("ARG PYTHON_IMAGE=") < result.index("FROM ")


def test_every_image_has_a_trial_and_a_place_of_its_own(image: ModuleType) -> None:
    assert tuple(image.TRIALS) == IMAGES
    assert len({image.output(name) for name in IMAGES} | {image.tag(name) for name in IMAGES}) == 2 * len(
        IMAGES
    )
    # `make sbom` reads the server's.
    assert image.output("serve") == ROOT / "target" / "image"


def test_the_rules_for_crates_name_one_crypto_provider() -> None:
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    assert {entry["crate"] for entry in rules["bans"]["deny"]} >= {"openssl-sys", "native-tls"}
    assert rules["sources"] == {"unknown-registry": "deny", "unknown-git": "deny"}
    locked = {package["name"] for package in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]}
    assert "ring" in locked
    assert not locked & {"openssl-sys", "native-tls", "aws-lc-sys"}
