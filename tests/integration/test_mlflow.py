"""Tests of a real MLflow server as the registry of a real server that follows its aliases."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bundles import FEATURES, rows
from mlflow_server import MlflowServer, start_mlflow
from servers import ACTION, SCORE, RunningServer, scorer_in_process, settings, start_server

from scorer.errors import BundleError, RegistryError, UnknownReferenceError
from scorer.registry import RegistryBackend, open_registry
from scorer.v1 import scoring_pb2 as pb
from scorer.v1 import scoring_pb2_grpc

SECRET = "a-secret-of-at-least-sixteen"


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with start_mlflow(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


@pytest.fixture
def store(mlflow: MlflowServer, built_bundles: dict[str, Path]) -> RegistryBackend:
    """A registry with score-1 and score-2, whose alias ``live`` names score-1."""
    result = open_registry(mlflow.location)
    for variant in ("score-2", "score-1"):
        result.push(built_bundles[variant])
    result.alias("fraud-checkout", "live", digest_of(built_bundles["score-1"]), by="ann", reason="start")
    return result


def digest_of(bundle: Path) -> str:
    return str(json.loads((bundle / "manifest.json").read_text())["digest"])


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def toml(mlflow: MlflowServer, *, poll_ms: int = 50, server: str = "") -> str:
    text = settings(SCORE, server=server, registry=f'url = "{mlflow.location}"')
    return text.replace("poll_ms = 20", f"poll_ms = {poll_ms}")


def served(server: RunningServer) -> str:
    """Return the digest of the bundle that answers a request now."""
    stub = scoring_pb2_grpc.ScoringServiceStub(server.channel())
    values = dict(zip(FEATURES, rows(1)[0].tolist(), strict=True))
    named = pb.NamedFeatures(features=[pb.Feature(name=n, number=v) for n, v in values.items()])
    request = pb.ScoreRequest(checkpoint="fraud.checkout", named=named)
    return str(stub.Score(request, timeout=20).served.bundle)


def test_a_registry_keeps_pushed_bundles_and_undoes_moves_of_aliases(
    mlflow: MlflowServer, store: RegistryBackend, built_bundles: dict[str, Path], tmp_path: Path
) -> None:
    one, two, three = (digest_of(built_bundles[f"score-{n}"]) for n in (1, 2, 3))
    assert store.push(built_bundles["score-1"]) == one, "a repeated push changes nothing"
    assert {record.digest for record in store.list("fraud-checkout")} == {one, two}
    assert [record.digest for record in store.list(prefix=one)] == [one]
    assert [record.digest for record in store.list(prefix=two[7:20])] == [two]
    store.push(built_bundles["score-3"], by="cy")
    newest = store.list()[0]
    assert (newest.digest, newest.kind, newest.pushed_by, newest.aliases) == (three, "score", "cy", ())
    assert newest.bytes == sum(file.stat().st_size for file in built_bundles["score-3"].iterdir())

    moved = store.alias("fraud-checkout", "live", two[:20], by="bob", reason="better")
    assert moved is not None
    assert (moved.digest, moved.previous, moved.by) == (two, one, "bob")
    assert store.alias("fraud-checkout", "live", two) is None, "the alias names this version already"
    # A move by MLflow's user interface leaves no entry in the history, but a rollback undoes it.
    version = mlflow.call_rest("GET", "registered-models/get?name=fraud-checkout")["registered_model"]
    newest_version = max(int(v["version"]) for v in version["latest_versions"])
    mlflow.set_alias("fraud-checkout", "live", str(newest_version))
    assert store.resolve("fraud-checkout@live").digest == three
    assert store.rollback("fraud-checkout", "live", reason="worse").digest == two
    assert store.rollback("fraud-checkout", "live").digest == one
    changes = [(change.action, change.digest) for change in store.history("fraud-checkout@live")][-4:]
    assert changes == [("alias", two), ("alias", three), ("rollback", two), ("rollback", one)]

    copy = tmp_path / "copy"
    copy.mkdir()
    store.copy(store.resolve("fraud-checkout@live"), copy)
    assert contents(copy) == contents(built_bundles["score-1"])
    details = store.show(one)
    assert details.manifest["digest"] == one
    assert details.record.aliases == ("fraud-checkout@live",)
    with pytest.raises(UnknownReferenceError, match='did you mean "fraud-checkout@live"'):
        store.resolve("fraud-checkout@life")
    with pytest.raises(RegistryError, match='is called "fraud-checkout"'):
        store.alias("other", "live", one)


def test_the_registry_commands_work_with_mlflow(
    mlflow: MlflowServer, store: RegistryBackend, built_bundles: dict[str, Path]
) -> None:
    done = scorer_in_process(
        "registry", "push", str(built_bundles["score-2"]), "--alias", "live", "-r", mlflow.location
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == digest_of(built_bundles["score-2"])
    back = scorer_in_process("registry", "rollback", "fraud-checkout@live", "-r", mlflow.location, "--json")
    assert json.loads(back.stdout)["digest"] == digest_of(built_bundles["score-1"])
    shown = json.loads(scorer_in_process("registry", "list", "-r", mlflow.location, "--json").stdout)
    assert digest_of(built_bundles["score-1"]) in {entry["digest"] for entry in shown}
    refused = scorer_in_process("registry", "reindex", "-r", mlflow.location)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)


@pytest.mark.fault_case(65)
def test_a_moved_alias_is_followed_and_mlflow_may_be_killed(
    mlflow: MlflowServer, store: RegistryBackend, built_bundles: dict[str, Path], tmp_path: Path
) -> None:
    one, two = (digest_of(built_bundles[f"score-{n}"]) for n in (1, 2))
    with start_server(tmp_path, toml(mlflow)) as server:
        assert served(server) == one
        store.alias("fraud-checkout", "live", two)
        server.event("swapped", checkpoints={"fraud.checkout": two})
        assert served(server) == two
        mlflow.kill()
        server.event("registry_unavailable")
        assert served(server) == two
        assert server.status()["registry"]["reachable"] is False
    # A restart without MLflow boots from the bundle cache.
    with start_server(tmp_path) as server:
        assert served(server) == two
        assert len(server.named("registry_unavailable")) <= 1, "the event is logged once"
        mlflow.start()
        server.event("registry_reachable")
        store.alias("fraud-checkout", "live", one)
        server.event("swapped", checkpoints={"fraud.checkout": one})
        assert not server.noise


def test_a_webhook_triggers_a_poll(
    mlflow: MlflowServer, store: RegistryBackend, built_bundles: dict[str, Path], tmp_path: Path
) -> None:
    two = digest_of(built_bundles["score-2"])
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    secret.chmod(0o600)
    hears = f'webhook_listen = "127.0.0.1:0"\nwebhook_secret_file = "{secret}"'
    # The registry is polled once an hour, so that within the test only the webhook reports the change.
    with start_server(tmp_path, toml(mlflow, poll_ms=3_600_000, server=hears)) as server:
        result = mlflow.call_rest(
            "POST",
            "webhooks",
            {
                "name": "scorer",
                "url": f"http://{server.serving['webhooks']}/",
                "secret": SECRET,
                "events": [{"entity": "MODEL_VERSION_ALIAS", "action": "CREATED"}],
            },
        )
        try:
            store.alias("fraud-checkout", "live", two)
            server.event("registry_webhook")
            server.event("swapped", checkpoints={"fraud.checkout": two})
            assert served(server) == two
            forged = urllib.request.Request(
                f"http://{server.serving['webhooks']}/", data=b"{}", headers={"X-MLflow-Signature": "v1,AAAA"}
            )
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(forged, timeout=20)
            server.event("webhook_refused", reason="the signature is not ours")
        finally:
            mlflow.call_rest("DELETE", f"webhooks/{result['webhook']['webhook_id']}")


def artifact_folder(mlflow: MlflowServer, store: RegistryBackend, digest: str) -> Path:
    path = str(store.show(digest).path)
    return mlflow.artifacts / path.rpartition("artifacts ")[2]


def test_an_altered_bundle_is_refused_until_it_is_pushed_again(
    mlflow: MlflowServer, store: RegistryBackend, built_bundles: dict[str, Path], tmp_path: Path
) -> None:
    one, two = (digest_of(built_bundles[f"score-{n}"]) for n in (1, 2))
    folder = artifact_folder(mlflow, store, two)
    forest = folder / "forest.bin"
    content = bytearray(forest.read_bytes())
    content[len(content) // 2] ^= 1
    forest.write_bytes(content)
    with start_server(tmp_path, toml(mlflow)) as server:
        store.alias("fraud-checkout", "live", two)
        refused = server.event("candidate_refused", bundle=two)
        assert '"forest.bin" in MLflow was altered' in refused["reason"]
        assert served(server) == one
        assert store.push(built_bundles["score-2"]) == two, "an unaltered bundle becomes a new version"
        store.alias("fraud-checkout", "live", two)
        server.event("swapped", checkpoints={"fraud.checkout": two})
        assert served(server) == two
        assert len(server.named("candidate_refused")) == 1


def spoil_manifest(folder: Path) -> None:
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace("fraud-checkout", "fraud_checkout"))


def lengthen(folder: Path) -> None:
    with (folder / "golden.bin").open("ab") as file:
        file.write(b"x")


HARM: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file too many": (
        lambda folder: (folder / "MLmodel").write_text("loader_module: evil"),
        'hold "MLmodel"',
    ),
    "an ordinary model": (lambda folder: (folder / "manifest.json").rename(folder / "MLmodel"), "no bundle"),
    "a file that grew": (lengthen, "has more than"),
    "a file cut short": (lambda folder: (folder / "golden.bin").write_bytes(b"x"), "has 1 bytes"),
    "a file gone": (lambda folder: (folder / "golden.bin").unlink(), "cannot be had"),
    "another manifest": (spoil_manifest, "is not that of bundle"),
}


@pytest.mark.fault_case(58)
@pytest.mark.parametrize("case", HARM)
def test_only_the_files_of_the_bundle_are_downloaded(
    mlflow: MlflowServer,
    store: RegistryBackend,
    built_bundles: dict[str, Path],
    tmp_path: Path,
    case: str,
) -> None:
    harm, reason = HARM[case]
    digest = digest_of(built_bundles["score-1"])
    target = store.resolve("fraud-checkout@live")
    folder = artifact_folder(mlflow, store, digest)
    kept = tmp_path / "kept"
    shutil.copytree(folder, kept)
    try:
        harm(folder)
        into = tmp_path / "into"
        into.mkdir()
        with pytest.raises(BundleError, match=reason):
            store.copy(target, into)
    finally:
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)


def test_training_is_tracked_and_an_unreachable_server_causes_a_warning(
    mlflow: MlflowServer, tmp_path: Path
) -> None:
    from scorer.learn.schedule.generation import RunReport
    from scorer.learn.schedule.runner import Done
    from scorer.learn.tracking import Tracking, TrackingSettings

    (tmp_path / "evaluation.json").write_text('{"rows": 7}')
    report = {
        "rows": 7,
        "difference": 0.01,
        "how": {"tau": 0.5, "rule": "softmax"},
        "low": float("nan"),
        "ok": True,
    }
    ran = RunReport(tmp_path, (Done("evaluate", "done", 1.5, report), Done("gate", "kept", 0.0, {})))
    assert Tracking(TrackingSettings(url=mlflow.url, experiment="learning")).steps(ran) == []
    experiment = mlflow.call_rest("GET", "experiments/get-by-name?experiment_name=learning")["experiment"]
    (run,) = mlflow.call_rest("POST", "runs/search", {"experiment_ids": [experiment["experiment_id"]]})[
        "runs"
    ]
    assert run["info"]["status"] == "FINISHED"
    metrics = {entry["key"]: entry["value"] for entry in run["data"]["metrics"]}
    assert metrics == {"rows": 7, "difference": 0.01, "how.tau": 0.5, "seconds": 1.5}
    params = {entry["key"]: entry["value"] for entry in run["data"]["params"]}
    assert params == {"how.rule": "softmax", "ok": "True"}
    tags = {entry["key"]: entry["value"] for entry in run["data"]["tags"]}
    assert (tags["scorer.step"], tags["scorer.generation"]) == ("evaluate", tmp_path.name)
    stored = mlflow.artifacts / run["info"]["artifact_uri"].partition(":/")[2] / "evaluation.json"
    assert stored.read_text() == '{"rows": 7}'
    (warning,) = Tracking(TrackingSettings(url="http://127.0.0.1:1")).steps(ran)
    assert warning.startswith("not tracked: MLflow at http://127.0.0.1:1 does not answer")


def test_the_loop_publishes_to_mlflow_and_the_server_follows_the_alias(
    mlflow: MlflowServer, tmp_path: Path
) -> None:
    from loops import AS_OF, make_loop

    from scorer.learn import settings as learn_settings
    from scorer.learn.schedule.generation import run_generation
    from scorer.learn.schedule.workspace import Workspace

    base = make_loop(tmp_path / "base")
    store = open_registry(mlflow.location)
    first = store.push(base / "first")
    store.alias("small", "live", first)
    learn = (base / "learn.toml").read_text()
    (base / "learn.toml").write_text(f'{learn}registry = "{mlflow.location}"\n')
    point = ACTION.replace("action-authorise@live", "small@live")
    with start_server(tmp_path, toml(mlflow).replace(SCORE, point)) as server:
        settings = learn_settings.load(base / "learn.toml")
        ran = run_generation(Workspace(base / "work"), settings, base, as_of_ms=AS_OF)
        published = ran.steps[-1].says["digest"]
        assert store.resolve("small@live").digest == published != first
        server.event("swapped", checkpoints={"action.authorise": published})
