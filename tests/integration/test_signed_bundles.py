"""Tests that a server loads no bundle of an attacker who can write to the registry."""

from __future__ import annotations

import json
import shutil
import sqlite3
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from bundles import FEATURES, rows, tiny_score_bundle
from mlflow_server import MlflowServer, start_mlflow
from servers import SCORE, RunningServer, settings, start_server

from scorer.bundle.signing import new_key, sign
from scorer.registry import Registry, RegistryBackend, open_registry
from scorer.v1 import scoring_pb2 as pb
from scorer.v1 import scoring_pb2_grpc

ALIAS = "fraud-checkout@live"
NAMED = ("fraud-checkout", "live")
SIGNATURE = "signature.json"


@dataclass
class Release:
    """Bundles, the key of the owner and the key of the attacker."""

    base: Path
    built: dict[str, Path]

    @property
    def owner(self) -> Path:
        return self.base / "release.key"

    @property
    def stranger(self) -> Path:
        return self.base / "stranger.key"

    def bundle(self, name: str, *, release: int | None, key: Path | None = None) -> Path:
        """Return a copy of a built bundle, which is signed if `release` is given."""
        place = self.base / f"{name}-{release}-{key and key.stem}"
        shutil.copytree(self.built[name], place)
        if release is not None:
            sign(place, [key or self.owner], release=release)
        return place


@pytest.fixture
def release(tmp_path: Path, built_bundles: dict[str, Path]) -> Release:
    keys = tmp_path / "keys"
    keys.mkdir()
    new_key(tmp_path / "release.key", keys / "release.pem")
    new_key(tmp_path / "stranger.key", tmp_path / "stranger.pem")
    return Release(tmp_path, built_bundles)


def toml(registry: str = "") -> str:
    return '[bundles]\ntrusted_keys = ["keys"]\n' + settings(SCORE, registry=registry)


def served(server: RunningServer) -> str:
    """Return the digest of the bundle that answers a request now."""
    stub = scoring_pb2_grpc.ScoringServiceStub(server.channel())
    values = dict(zip(FEATURES, rows(1)[0].tolist(), strict=True))
    named = pb.NamedFeatures(features=[pb.Feature(name=n, number=v) for n, v in values.items()])
    request = pb.ScoreRequest(checkpoint="fraud.checkout", named=named)
    return str(stub.Score(request, timeout=20, wait_for_ready=True).served.bundle)


def digest_of(bundle: Path) -> str:
    return str(json.loads((bundle / "manifest.json").read_text())["digest"])


def refuses(server: RunningServer, bundle: str, says: str) -> None:
    """Assert that the candidate is refused with these words, and that the live bundle continues to answer."""
    before = served(server)
    refused = server.event("candidate_refused", bundle=bundle)
    while says not in refused["reason"]:
        refused = server.event("candidate_refused", bundle=bundle)
    assert "\n" not in refused["reason"]
    assert {served(server) for _ in range(5)} == {before} != {bundle}


@pytest.fixture
def directory(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry")


@pytest.fixture
def server(tmp_path: Path, release: Release, directory: Registry) -> Iterator[RunningServer]:
    """A server that serves release 7, signed by the owner."""
    directory.alias(*NAMED, directory.push(release.bundle("score-1", release=7)))
    with start_server(tmp_path, toml()) as running:
        yield running


@pytest.mark.fault_case(55)
def test_write_access_to_the_registrys_disk_does_not_suffice_to_serve_a_model(
    server: RunningServer, release: Release, directory: Registry
) -> None:
    live = digest_of(release.built["score-1"])
    two = directory.push(release.bundle("score-2", release=None))
    assert served(server) == live
    directory.alias(*NAMED, two)
    refuses(server, two, "it has no signature.json")
    place = directory.resolve(two).path
    assert place is not None
    for forged, message in (
        (release.bundle("score-2", release=9, key=release.stranger), "which is not trusted here"),
        (release.bundle("score-3", release=9), "its signature is of bundle sha256:"),
        (release.bundle("score-1", release=8), "its signature is of bundle sha256:"),
    ):
        (place / SIGNATURE).unlink(missing_ok=True)
        shutil.copyfile(forged / SIGNATURE, place / SIGNATURE)
        refuses(server, two, message)
    # A push adds the owner's signature of the same bytes. No alias is moved.
    directory.push(release.bundle("score-2", release=8))
    server.event("swapped", checkpoints={"fraud.checkout": two})
    assert served(server) == two
    status = server.status()
    assert [(b["release"], b["live"]) for b in status["bundles"] if b.get("live")] == [("8", True)]


@pytest.mark.fault_case(55)
def test_a_signed_bundle_of_another_name_is_refused(
    server: RunningServer, release: Release, directory: Registry, tmp_path: Path
) -> None:
    tiny_score_bundle(tmp_path / "other", variant=2, name="fraud-refunds")
    sign(tmp_path / "other", [release.owner], release=50)
    digest = directory.push(tmp_path / "other")
    # The registry refuses this, but an attacker with access to its disk can bypass the registry.
    with sqlite3.connect(directory.path / "registry.sqlite") as database:
        database.execute(
            "INSERT INTO alias_history (name, alias, digest, action, at_ms, by, reason)"
            " VALUES ('fraud-checkout', 'live', ?, 'alias', 1, 'x', '')",
            [digest.removeprefix("sha256:")],
        )
    refuses(server, digest, 'it is signed as a bundle of "fraud-refunds"')


@pytest.mark.fault_case(57)
def test_an_older_signed_release_is_refused_also_after_a_restart(
    server: RunningServer, release: Release, directory: Registry, tmp_path: Path
) -> None:
    one, two = digest_of(release.built["score-1"]), directory.push(release.bundle("score-2", release=8))
    directory.alias(*NAMED, two)
    server.event("swapped", checkpoints={"fraud.checkout": two})
    old = directory.push(release.bundle("score-3", release=6))
    directory.alias(*NAMED, old)
    refuses(server, old, "it is release 6")
    refused = server.cli("swap", "fraud.checkout", old)
    assert refused.returncode == 1
    assert "--allow-rollback" in refused.stderr
    # A bundle that was served before is served again without the flag.
    assert server.cli("rollback", "fraud.checkout", "-m", "two is wrong").returncode == 0
    assert served(server) == one
    assert server.cli("swap", "fraud.checkout", old, "--allow-rollback").returncode == 0
    assert served(server) == old
    assert server.stop() == 0
    with start_server(tmp_path, toml()) as again:
        assert served(again) == old, "the last known good bundle loads"


@pytest.mark.fault_case(55)
def test_replacing_a_key_under_traffic_fails_no_request(
    server: RunningServer, release: Release, directory: Registry, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    new_key(tmp_path / "next.key", keys / "next.pem")
    both = release.bundle("score-2", release=None)
    sign(both, [release.owner, tmp_path / "next.key"], release=8)
    two = directory.push(both)
    # A key file that is only partly written at this moment.
    (keys / "half.pem").write_text((keys / "next.pem").read_text()[:60])
    (keys / "release.pem").unlink()
    directory.alias(*NAMED, two)
    server.event("swapped", checkpoints={"fraud.checkout": two})
    assert served(server) == two
    old = directory.push(release.bundle("score-3", release=9))
    directory.alias(*NAMED, old)
    refuses(server, old, "half.pem")
    (keys / "half.pem").unlink()
    directory.push(release.bundle("score-3", release=10))
    refuses(server, old, "which is not trusted here")


@pytest.mark.fault_case(67)
def test_a_command_quarantines_a_bundle(
    server: RunningServer, release: Release, directory: Registry, tmp_path: Path
) -> None:
    one, two = digest_of(release.built["score-1"]), directory.push(release.bundle("score-2", release=8))
    directory.alias(*NAMED, two)
    server.event("swapped", checkpoints={"fraud.checkout": two})
    assert "no bundle is in quarantine" in server.cli("quarantine", "list").stdout
    added = server.cli("quarantine", "add", two[:20], "-m", "the scores drift")
    assert added.returncode == 0, added.stderr
    assert served(server) == one
    assert "the scores drift" in server.cli("quarantine", "list").stdout
    assert "QUARANTINE" in server.cli("status").stdout
    with urllib.request.urlopen(f"http://{server.serving['metrics']}/metrics", timeout=10) as answer:
        assert b"scorer_bundles_quarantined 1" in answer.read()
    refused = server.cli("swap", "fraud.checkout", two)
    assert refused.returncode == 1
    assert "is in quarantine (the scores drift" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert server.stop() == 0
    with start_server(tmp_path, toml()) as again:
        assert served(again) == one
        assert again.cli("swap", "fraud.checkout", two).returncode == 1
        assert again.cli("quarantine", "remove", two[:20]).returncode == 0
        assert again.cli("swap", "fraud.checkout", two).returncode == 0
        assert served(again) == two


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with start_mlflow(tmp_path_factory.mktemp("mlflow")) as running:
        yield running


@pytest.mark.fault_case(55)
def test_write_access_to_mlflow_does_not_suffice_to_serve_a_model(
    mlflow: MlflowServer, release: Release, tmp_path: Path
) -> None:
    store: RegistryBackend = open_registry(mlflow.location)
    one = store.push(release.bundle("score-1", release=7))
    store.alias(*NAMED, one)
    with start_server(tmp_path, toml(f'url = "{mlflow.location}"')) as server:
        assert served(server) == one
        two = store.push(release.bundle("score-2", release=None))
        store.alias(*NAMED, two)
        refuses(server, two, "it has no signature.json")
        store.push(release.bundle("score-2", release=9, key=release.stranger))
        refuses(server, two, "which is not trusted here")
        old = store.push(release.bundle("score-3", release=6))
        store.alias(*NAMED, old)
        refuses(server, old, "it is release 6")
        store.alias(*NAMED, two)
        store.push(release.bundle("score-2", release=8))
        server.event("swapped", checkpoints={"fraud.checkout": two})
        assert served(server) == two
