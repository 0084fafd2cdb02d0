"""Tests of bundles from model files: results, rejected files, permissions, and restarts."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import struct
import zipfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bundles import FEATURES, fraud_model, rows
from model_files import table, write_model, write_oracle, write_table
from platforms import SETTINGS, World
from pyarrow import parquet
from waiting import wait_until

from scorer.bundle import infer, verify
from scorer.errors import BundleError
from scorer.release.answers import BuildInfo
from scorer.release.builds import Builds, making
from scorer.release.builds.receiving import Sent
from scorer.release.builds.running import Processes
from scorer.release.errors import (
    ConflictError,
    InvalidError,
    NotAllowedError,
    NotFoundError,
    PlatformError,
    QuotaError,
)
from scorer.release.model import BuildState, Quotas
from scorer.release.requests import NewBuild


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Iterator[World]:
    settings = SETTINGS + "\n[builds]\nmemory_mb = 3072\n"
    world = World(tmp_path_factory.mktemp("builds"), built_bundles, settings=settings)
    yield world
    world.close()


@pytest.fixture(autouse=True)
def _ended(world: World) -> Iterator[None]:
    """End all builds after each test."""
    yield
    for build in world.service.builds.list(world.actor("admin"), limit=200):
        if not build.state.is_final:
            world.service.builds.cancel(world.actor("admin"), build.id)
    world.service.builds.tick()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model in each model format and a table in each table format."""
    folder = tmp_path_factory.mktemp("files")
    for ending in (".json", ".ubj", ".txt", ".tl"):
        write_model(folder / f"model{ending}")
    write_oracle(folder / "oracle.json")
    for name in ("table.parquet", "table.csv"):
        write_table(folder / name)
    return folder


def sent(**paths: Path | bytes) -> dict[str, Sent]:
    """Return the files by field. Bytes get the name of their field with the suffix `.json`."""
    return {
        field: Sent(one.name, io.BytesIO(one.read_bytes()))
        if isinstance(one, Path)
        else Sent(f"{field}.json", io.BytesIO(one))
        for field, one in paths.items()
    }


def new_build(**fields: Any) -> NewBuild:
    values = {"name": "fraud-checkout", "version": "v7", "checkpoint": "fraud.checkout"}
    return NewBuild(**{**values, "label": "fraud", **fields})


def finished(world: World, build: BuildInfo, builds: Builds | None = None) -> BuildInfo:
    own = builds or world.service.builds

    def ended() -> BuildInfo | None:
        own.tick()
        result = own.get(world.actor("admin"), build.id)
        return result if result.state.is_final else None

    return wait_until(ended, f"{build.id} has not ended", seconds=90)


def start(world: World, wanted: NewBuild, files: dict[str, Sent], user: str = "modeler") -> BuildInfo:
    return world.service.builds.start(world.actor(user), "fraud", wanted, files)


def bundle_of(world: World, build: BuildInfo) -> Any:
    assert build.state is BuildState.DONE, build.error
    return world.service.bundles.detail(world.actor("modeler"), build.digest)


# --- building ---


@pytest.mark.parametrize(
    ("model", "reference"),
    [
        ("model.json", "table.parquet"),
        ("model.ubj", "table.csv"),
        ("model.txt", "table.parquet"),
        ("model.tl", "table.csv"),
    ],
)
def test_a_bundle_is_built_from_a_model_file_like_an_uploaded_one(
    world: World, files: Path, model: str, reference: str
) -> None:
    given = sent(model=files / model, table=files / reference)
    build = finished(world, start(world, new_build(version=model), given))
    detail = bundle_of(world, build)
    assert [feature["name"] for feature in detail.features] == list(FEATURES)
    bands = detail.manifest["program"][-1]["bands"]
    assert [band["label"] for band in bands] == ["approve", "review", "decline"]
    assert (detail.info.name, detail.info.project, detail.info.uploaded_by) == (
        "fraud-checkout",
        "fraud",
        "modeler",
    )
    lineage = detail.lineage
    assert lineage["data_digest"] == next(one["sha256"] for one in build.files if one["field"] == "table")
    assert lineage["model_digest"] == next(one["sha256"] for one in build.files if one["field"] == "model")
    assert (lineage["built_by"], lineage["code_version"], lineage["run_id"]) == ("modeler", model, build.id)
    library = {"model.txt": "lightgbm", "model.tl": "treelite"}.get(model, "xgboost")
    assert lineage["golden_cases_by"].startswith(f"{library} ")
    data = rows(50, seed=9)
    if library != "lightgbm":
        import xgboost

        expected = fraud_model(2).predict(xgboost.DMatrix(data, feature_names=list(FEATURES)))
        scored = verify(world.service.bundles.local(build.digest)).score(data).scores
        np.testing.assert_allclose(scored, expected, rtol=1e-6)
    assert not world.service.builds._processes.folder(build.id).exists()


def test_an_action_bundle_copies_policy_and_actions(world: World, files: Path) -> None:
    wanted = new_build(name="action-authorise", checkpoint="action.authorise", schema_from="live", label="")
    given = sent(model=files / "oracle.json", table=files / "table.parquet")
    detail = bundle_of(world, finished(world, start(world, wanted, given)))
    live = world.service.bundles.detail(world.actor("admin"), "action-authorise@live")
    assert detail.info.kind == "action"
    assert detail.manifest["program"][-1]["policy"] == live.manifest["program"][-1]["policy"]
    assert detail.features == live.features


def test_thresholds_schema_and_calibration_are_set_by_the_form(world: World, files: Path) -> None:
    lines = "\n".join([f"{FEATURES[0]} number 0.. required", *(f"{name} number" for name in FEATURES[1:])])
    wanted = new_build(
        name="other",
        checkpoint=None,
        schema_from="lines",
        features=lines,
        bands="0 pass\n0.7 stop it",
        calibration="isotonic",
    )
    given = sent(model=files / "model.json", table=files / "table.parquet", validation=files / "table.csv")
    detail = bundle_of(world, finished(world, start(world, wanted, given)))
    program = detail.manifest["program"]
    assert [node["kind"] for node in program] == ["forest", "link", "calibrate", "threshold"]
    assert program[-1]["bands"] == [{"from": 0.0, "label": "pass"}, {"from": 0.7, "label": "stop it"}]
    first = detail.features[0]
    assert (first["missing"], first["minimum"]) == ("refuse", 0.0)


def test_without_the_library_the_bundle_states_that_scores_were_not_compared(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = making.importlib.import_module

    def absent(name: str) -> Any:
        if name == "xgboost":
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(making.importlib, "import_module", absent)
    notes: list[str] = []
    model, margins, names, golden = making._model(files / "model.json", notes)
    assert (names, golden) == (FEATURES, "scorer")
    assert "not compared with the library" in notes[0]
    assert margins is not None
    data = rows(20)
    np.testing.assert_array_equal(margins(data), model.predict(data, margin=True))
    with pytest.raises(BundleError, match=r"save the model as \.json"):
        making._model(files / "model.ubj", [])


# --- schemas ---


def test_features_of_a_table_have_the_types_of_its_columns() -> None:
    features = infer.from_table(
        pa.table({"x": [1.0, None], "n": [1, 2], "new": [True, None], "land": ["NL", "DE"], "y": [0, 1]}),
        without=["y"],
    )
    assert [(one.name, one.type, one.categories) for one in features] == [
        ("x", "number", []),
        ("n", "number", []),
        ("new", "flag", []),
        ("land", "category", ["DE", "NL"]),
    ]


def test_features_of_an_example_follow_the_order_of_the_model() -> None:
    data = pa.table({"a": [1.0], "land": ["NL"], "new": [True]})
    example = json.dumps({"new": False, "a": 2, "land": "NL"}).encode()
    features = infer.from_example(example, data, names=["a", "land", "new"])
    assert [(one.name, one.type) for one in features] == [
        ("a", "number"),
        ("land", "category"),
        ("new", "flag"),
    ]
    with pytest.raises(BundleError, match="only one of the model and the example"):
        infer.from_example(example, data, names=["a", "land", "new", "more"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no features"),
        ("amount", "has no type"),
        ("amount money", "Input should be 'number', 'category' or 'flag'"),
        ("amount number 5", "cannot be read"),
        ("amount number a..b", "valid number"),
        ("a number\na flag", "written down twice"),
    ],
)
def test_invalid_feature_lines_are_refused_with_their_line_number(text: str, why: str) -> None:
    with pytest.raises(BundleError, match=why):
        infer.from_lines(text)


# --- hostile and wrong files ---


def test_files_of_wrong_types_are_refused_before_they_are_stored(world: World, files: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("model.json", "0" * 1000)
    stream = io.BytesIO(pickle.dumps({"a": 1}))
    good = sent(table=files / "table.parquet")
    for model, why in (
        (Sent("model.pkl", stream), "can run code"),
        (Sent("model.joblib", stream), "can run code"),
        (Sent("model.json", io.BytesIO(pickle.dumps([1]))), "is a pickle"),
        (Sent("model.json", io.BytesIO(packed.getvalue())), "is a zip archive"),
        (Sent("model.exe", stream), r'has the ending "\.exe"'),
        (Sent("model.json", io.BytesIO(b"")), "is empty"),
    ):
        with pytest.raises(InvalidError, match=why):
            start(world, new_build(), {**good, "model": model})
    with pytest.raises(InvalidError, match="table: the file is missing"):
        start(world, new_build(), sent(model=files / "model.json"))
    with pytest.raises(InvalidError, match=r'has the ending "\.xlsx"'):
        table_ = Sent("t.xlsx", io.BytesIO(b"x"))
        start(world, new_build(), {**sent(model=files / "model.json"), "table": table_})
    assert not list(world.service.builds._processes.root.glob("*")), "refused files were not deleted"


def _giant(model: bytes) -> bytes:
    document = json.loads(model)
    document["learner"]["gradient_booster"]["model"]["gbtree_model_param"]["num_trees"] = str(2**31 - 1)
    document["learner"]["learner_model_param"]["num_feature"] = str(2**31 - 1)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("truncated.json", lambda json_, _: json_[: len(json_) // 2], "JSON at byte"),
        ("truncated.ubj", lambda _, ubj: ubj[: len(ubj) // 2], "UBJ at byte"),
        ("giant.json", lambda json_, _: _giant(json_), "above the limit"),
        ("giant.ubj", lambda _, ubj: b"{L" + struct.pack(">q", 2**62) + ubj[10:], "above the bytes"),
        ("deep.json", lambda _, __: b"[" * 200_000, "nested too deeply"),
        ("other.txt", lambda _, __: b"this is no model\n" * 100, "does not start with"),
    ],
)
def test_a_damaged_model_is_refused_before_its_library_reads_it(
    files: Path, tmp_path: Path, name: str, change: Any, why: str
) -> None:
    path = tmp_path / name
    path.write_bytes(change((files / "model.json").read_bytes(), (files / "model.ubj").read_bytes()))
    with pytest.raises(BundleError, match=why):
        making._model(path, [])


def test_a_malicious_model_fails_only_its_build(world: World, files: Path) -> None:
    checkpoint = (files / "model.tl").read_bytes()
    builds = _limited(world, seconds=25)
    # The library trusts the counts in the second file.
    for content in (checkpoint[: len(checkpoint) // 3], checkpoint[:40] + b"\xff" * 64 + checkpoint[104:]):
        given = {**sent(table=files / "table.parquet"), "model": Sent("model.tl", io.BytesIO(content))}
        build = finished(world, start(world, new_build(), given), builds)
        assert build.state is BuildState.FAILED
        assert build.error
        assert str(world.directory) not in build.error
        assert "Traceback" not in build.error
    assert builds._processes.claimed == []
    builds.close()


def test_a_table_that_exceeds_the_memory_when_it_is_decompressed_fails_the_build(
    world: World, files: Path, tmp_path: Path
) -> None:
    # Two columns of the same long text take kilobytes in the file and gigabytes in memory.
    text = pa.array(["x" * (1 << 20)] * 256)
    bomb = pa.table({name: pa.chunked_array([text] * 8) for name in FEATURES})
    parquet.write_table(bomb, tmp_path / "bomb.parquet", compression="zstd", row_group_size=2048)
    assert (tmp_path / "bomb.parquet").stat().st_size < 1 << 20
    given = sent(model=files / "model.json", table=tmp_path / "bomb.parquet")
    build = finished(world, start(world, new_build(), given))
    assert build.state is BuildState.FAILED
    assert "memory" in build.error


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"PAR1" + b"\0" * 100, "cannot be read as Parquet"),
        (b"not a table at all", "cannot be read as Parquet"),
    ],
)
def test_a_file_that_is_not_a_table_is_refused_in_one_sentence(
    world: World, files: Path, content: bytes, why: str
) -> None:
    given = {**sent(model=files / "model.json"), "table": Sent("t.parquet", io.BytesIO(content))}
    build = finished(world, start(world, new_build(), given))
    assert build.state is BuildState.FAILED
    assert why in build.error


def test_the_error_of_a_table_without_a_column_of_the_model_names_the_column(
    world: World, files: Path, tmp_path: Path
) -> None:
    short = write_table(tmp_path / "short.csv", table().drop_columns([FEATURES[1]]))
    build = finished(world, start(world, new_build(), sent(model=files / "model.json", table=short)))
    assert build.state is BuildState.FAILED
    assert f'feature "{FEATURES[1]}"' in build.error


# --- permissions, limits and ends ---


def test_only_modelers_may_build(world: World, files: Path) -> None:
    builds = world.service.builds
    given = sent(model=files / "model.json", table=files / "table.parquet")
    with pytest.raises(NotAllowedError):
        start(world, new_build(), given, user="viewer")
    with pytest.raises(NotFoundError):
        start(world, new_build(), given, user="outsider")
    build = start(world, new_build(), given)
    assert builds.get(world.actor("viewer"), build.id).id == build.id
    with pytest.raises(NotFoundError):
        builds.get(world.actor("outsider"), build.id)
    assert build.id not in [one.id for one in builds.list(world.actor("outsider"))]
    with pytest.raises(NotAllowedError):
        builds.cancel(world.actor("viewer"), build.id)
    assert builds.cancel(world.actor("modeler"), build.id).state is BuildState.CANCELLED
    with pytest.raises(ConflictError):
        builds.cancel(world.actor("modeler"), build.id)
    actions = [
        one.action for one in world.service.audit.entries(world.actor("admin")) if one.object == build.id
    ]
    assert sorted(actions) == ["build.cancel", "build.start"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"schema_from": "example"}, "choose its file"),
        ({"schema_from": "lines"}, "write them"),
        ({"schema_from": "live", "checkpoint": None, "bands": "0 a"}, "choose its checkpoint"),
        ({"checkpoint": None}, "choose a checkpoint"),
        ({"calibration": "sigmoid", "label": ""}, "label"),
    ],
)
def test_inconsistent_fields_are_refused(world: World, files: Path, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidError, match=why):
        start(world, new_build(**fields), sent(model=files / "model.json", table=files / "table.csv"))
    with pytest.raises(NotFoundError, match="there is no checkpoint"):
        wanted = new_build(checkpoint="nowhere")
        start(world, wanted, sent(model=files / "model.json", table=files / "table.csv"))


def test_builds_of_a_project_are_bounded(world: World, files: Path) -> None:
    waiting = []
    with pytest.raises(QuotaError, match="wait until one has ended"):
        for _ in range(10):
            given = sent(model=files / "model.json", table=files / "table.csv")
            waiting.append(start(world, new_build(), given))
    assert len(waiting) == 4
    for build in waiting:
        world.service.builds.cancel(world.actor("modeler"), build.id)
    world.service.builds.tick()


def test_a_build_of_a_full_project_is_refused_before_anything_is_read(world: World, files: Path) -> None:
    root = world.actor("admin")
    world.service.access.update_project(root, "fraud", quotas=Quotas(bundles=1))
    try:
        with pytest.raises(PlatformError, match="limit"):
            start(world, new_build(), sent(model=files / "model.json", table=files / "table.csv"))
    finally:
        world.service.access.update_project(root, "fraud", quotas=Quotas())


def _limited(world: World, **limits: Any) -> Builds:
    """Return builds with other limits of their processes."""
    service = world.service
    processes = Processes(world.settings.platform.data_dir / "builds", **limits)
    parts = (world.settings, world.platform.store, service.access, service.audit, service.bundles)
    return Builds(*parts, processes=processes)


def _second(world: World) -> Builds:
    """Return the builds of another platform process on the same machine."""
    service = world.service
    return Builds(world.settings, world.platform.store, service.access, service.audit, service.bundles)


def test_a_build_continues_after_the_process_that_started_it(world: World, files: Path) -> None:
    builds = world.service.builds
    build = start(world, new_build(), sent(model=files / "model.json", table=files / "table.parquet"))
    builds.tick()
    assert builds.get(world.actor("modeler"), build.id).state is BuildState.RUNNING
    second = _second(world)
    second.tick()
    assert second._processes.claimed == [], "a build that another process runs was claimed"
    builds.close()  # as after a restart, the files remain
    assert finished(world, build, second).state is BuildState.DONE
    second.close()


def test_a_build_that_ends_the_platform_repeatedly_is_abandoned(world: World, files: Path) -> None:
    builds = world.service.builds
    build = start(world, new_build(), sent(model=files / "model.json", table=files / "table.parquet"))
    for _ in range(3):
        builds.tick()
        builds.close()
    result = finished(world, build)
    assert (result.state, "interrupted 3 times" in result.error) == (BuildState.FAILED, True)


def test_a_build_without_its_files_fails_with_a_reason(world: World, files: Path) -> None:
    build = start(world, new_build(), sent(model=files / "model.json", table=files / "table.parquet"))
    shutil.rmtree(world.service.builds._processes.folder(build.id))
    builds = _second(world)
    builds.tick()
    assert not builds.get(world.actor("modeler"), build.id).state.is_final, "the build ended too early"
    real = builds._now
    builds._now = lambda: real() + timedelta(minutes=11)
    result = finished(world, build, builds)
    assert (result.state, "send the files again" in result.error) == (BuildState.FAILED, True)


def test_a_build_beyond_its_time_limit_is_ended(world: World, files: Path) -> None:
    ticking = iter(range(0, 10**9, 10_000))
    builds = _limited(world, seconds=60, clock=lambda: float(next(ticking)))
    build = start(world, new_build(), sent(model=files / "model.json", table=files / "table.parquet"))
    result = finished(world, build, builds)
    assert (result.state, "longer than 1 minutes" in result.error) == (BuildState.FAILED, True)
