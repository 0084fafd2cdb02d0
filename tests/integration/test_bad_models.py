"""Tests that models which must not be released are each stopped by the intended gate."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import CREATED, FEATURES, rows
from servers import SCORE, RunningServer, settings, start_server
from waiting import wait_until

from scorer.client import Client
from scorer.registry import Registry
from scorer.release.archive import pack
from scorer.release.changes import ChangeDetail, Draft
from scorer.release.errors import PlatformError
from scorer.release.model import Actor, ChangeKind, ChangeState, Outcome, Role
from scorer.release.open import PlatformServices, open_service
from scorer.release.settings import PlatformFile

# The gates evaluate latencies that are measured on this machine.
pytestmark = pytest.mark.alone

CHECKPOINT = "fraud.checkout"
# The payment on which the overflowing model is not finite. No training row has both values.
EXPENSIVE_AND_DISTANT = (500.0, 12.0, 2.0, 80.0)


def booster(
    labels_shift: float = 0.0,
    *,
    more: tuple[str, ...] = (),
    trees: int = 8,
    objective: str = "binary:logistic",
) -> Any:
    """Train a small model on rows of `bundles.rows`."""
    import xgboost as xgb

    data = rows(4000, seed=3)
    odds = data[:, 0] / 100 + data[:, 2] / 2 - 2.4 + labels_shift
    labels = np.random.default_rng(3).random(len(data)) < 1 / (1 + np.exp(-odds))
    extra = np.random.default_rng(4).normal(size=(len(data), len(more))).astype(np.float32) + odds[:, None]
    if more:
        data = np.concatenate([data, extra.astype(np.float32)], axis=1)
    matrix = xgb.DMatrix(data, labels.astype(np.float32), feature_names=[*FEATURES, *more])
    return xgb.train(
        {"objective": objective, "max_depth": 3, "eta": 0.3, "nthread": 1, "seed": 5}, matrix, trees
    )


def edited(model: Any, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Any:
    """Return the model with edited trees."""
    import xgboost as xgb

    document = json.loads(bytes(model.save_raw("json")))
    inner = document["learner"]["gradient_booster"]["model"]
    trees = change(inner["trees"])
    for at, tree in enumerate(trees):
        tree["id"] = at
    inner["trees"], inner["tree_info"] = trees, [0] * len(trees)
    inner["gbtree_model_param"]["num_trees"] = str(len(trees))
    inner.pop("iteration_indptr", None)
    return xgb.Booster(model_file=bytearray(json.dumps(document).encode()))


def overflowing(trees: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add a tree whose leaf for an expensive, distant payment overflows the float range of `exp`."""

    def tree() -> dict[str, Any]:
        return {
            **trees[0],
            "base_weights": [0.0] * 9,
            "categories": [],
            "categories_nodes": [],
            "categories_segments": [],
            "categories_sizes": [],
            "default_left": [1, 0, 0, 1, 0, 0, 0, 0, 0],
            "left_children": [1, -1, 3, 5, -1, -1, 7, -1, -1],
            "right_children": [2, -1, 4, 6, -1, -1, 8, -1, -1],
            "parents": [2147483647, 0, 0, 2, 2, 3, 3, 6, 6],
            "loss_changes": [0.0] * 9,
            "sum_hessian": [1.0] * 9,
            # 499 <= amount < 501 and 79 <= distance < 81. Missing values take the branch with leaf 0.
            "split_conditions": [499.0, 0.0, 501.0, 79.0, 0.0, 0.0, 81.0, 100.0, 0.0],
            "split_indices": [0, 0, 0, 3, 0, 0, 3, 0, 0],
            "split_type": [0] * 9,
            "tree_param": {**trees[0]["tree_param"], "num_nodes": "9"},
        }

    return [*trees, tree()]


def build(
    directory: Path, model: Any, *, features: tuple[str, ...] = FEATURES, name: str = "fraud-checkout"
) -> Path:
    from scorer.bundle import Band, Feature, Lineage, SchemaFile, build_score_bundle

    data = rows(2000)
    if len(features) > len(FEATURES):
        more = np.random.default_rng(1).normal(size=(len(data), len(features) - len(FEATURES)))
        data = np.concatenate([data, more.astype(np.float32)], axis=1)
    build_score_bundle(
        directory,
        name="fraud-checkout",
        model=model,
        schema=SchemaFile(features=[Feature(name=feature) for feature in features]),
        bands=[
            Band(start=start, label=label)
            for label, start in (("approve", 0.0), ("review", 0.4), ("decline", 0.8))
        ],
        training=data[:1500],
        validation=data[1500:],
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="test", run_id=directory.name),
        golden_cases=256,
        created_at=CREATED,
    )
    return directory


class Shop:
    """A server with traffic, a platform, a data scientist and an approver."""

    def __init__(self, server: RunningServer, *, p99_ms: float) -> None:
        self.settings = PlatformFile.parse(
            f"""
            [platform]
            database = "platform-{p99_ms:g}.sqlite"
            data_dir = "platform-{p99_ms:g}"

            [[fleet]]
            name = "live"
            control = "{server.control}"
            log = "decisions"

            [checkpoints."{CHECKPOINT}"]
            alias = "fraud-checkout@live"
            p99_ms = {p99_ms}
            sample = 1.0
            slots = 8
            """,
            base=server.directory,
        )
        self.platform: PlatformServices = open_service(self.settings)
        self.platform.tick()  # the actor that reads the live lanes
        self.service = self.platform.service
        access = self.service.access
        _, secret = access.bootstrap("admin")
        root = access.authenticate(secret)
        access.create_project(root, "fraud", "Fraud")
        self.people: dict[str, Actor] = {}
        for user, role in (("dana", Role.MODELER), ("ari", Role.APPROVER)):
            access.set_member(root, "fraud", user, role)
            _, token = access.create_token(root, user=user, label="test", role=role)
            self.people[user] = access.authenticate(token)

    def ship(
        self, bundle: Path, kind: ChangeKind = ChangeKind.TEST, *, minutes: float = 0.06, **more: Any
    ) -> ChangeDetail:
        """Submit a change request of this bundle and tick until it is final or waits for a user."""
        dana = self.people["dana"]
        with io.BytesIO() as archive:
            pack(bundle, archive)
            archive.seek(0)
            info = self.service.bundles.upload(dana, "fraud", archive)
        draft = Draft("fraud", kind, CHECKPOINT, info.digest, bundle.name, minutes=minutes, **more)
        change = self.service.changes.draft(dana, draft).id
        self.service.changes.submit(dana, change)
        return self.until_settled(change)

    def until_settled(self, change: str) -> ChangeDetail:
        def settled() -> ChangeDetail | None:
            self.platform.tick()
            detail = self.service.changes.get(self.people["ari"], change)
            waits = detail.change.step == "approval" and detail.change.state is ChangeState.REPORT
            return detail if detail.change.state.is_final or waits else None

        return wait_until(settled, seconds=60)

    def refused(self, bundle: Path) -> str:
        """Return the error of a RELEASE of this bundle."""
        dana = self.people["dana"]
        digest = json.loads((bundle / "manifest.json").read_text())["digest"]
        with pytest.raises(PlatformError) as raised:
            draft = self.service.changes.draft(
                dana, Draft("fraud", ChangeKind.RELEASE, CHECKPOINT, digest, "now", minutes=0.05)
            )
            self.service.changes.submit(dana, draft.id)
        return str(raised.value)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("shop")
    (directory / "scorer.toml").write_text(settings(SCORE))
    live = build(directory / "live", booster())
    registry = Registry(directory / "registry")
    registry.alias("fraud-checkout", "live", registry.push(live))
    with start_server(directory) as running, payments(running):
        yield running


@pytest.fixture(scope="module")
def shop(server: RunningServer) -> Iterator[Shop]:
    shop = Shop(server, p99_ms=1000.0)
    yield shop
    shop.platform.close()


class payments:  # noqa: N801 - reads as what it is: `with payments(server)`
    """Sends payments until the context ends; one in fifty is expensive and distant.

    Every call must succeed.
    """

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._stop = threading.Event()
        self._failed: list[Exception] = []
        self._thread = threading.Thread(target=self._pay, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert not self._failed

    def _pay(self) -> None:
        stream = rows(5000, seed=77)
        stream[::50] = EXPENSIVE_AND_DISTANT
        with Client(self._server.address) as client:
            at = 0
            while not self._stop.wait(0.0005):
                try:
                    client.score(CHECKPOINT, stream[at % len(stream)], timeout=30.0)
                except Exception as error:
                    self._failed.append(error)
                    return
                at += 1


def gates(detail: ChangeDetail) -> dict[str, Any]:
    return {gate.metric: gate for gate in detail.gates}


def blocking(detail: ChangeDetail) -> set[str]:
    return {gate.metric for gate in detail.gates if gate.outcome is Outcome.FAIL and gate.blocks}


def test_a_model_as_good_as_the_live_one_passes(shop: Shop, tmp_path: Path) -> None:
    detail = shop.ship(build(tmp_path / "as-good", booster(trees=9)))
    assert detail.change.state is ChangeState.DONE, [gate.words for gate in detail.gates]
    assert detail.change.verdict is Outcome.PASS, [gate.words for gate in detail.gates if gate.blocks]


@dataclass(frozen=True)
class Shipped:
    """A bundle and its change request in the last state."""

    bundle: Path
    detail: ChangeDetail


@pytest.fixture(scope="module")
def infinite(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    directory = tmp_path_factory.mktemp("infinite")
    bundle = build(directory / "overflows", edited(booster(objective="count:poisson"), overflowing))
    return Shipped(bundle, shop.ship(bundle))


@pytest.fixture(scope="module")
def shifted(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    bundle = build(tmp_path_factory.mktemp("shifted") / "shifted", booster(labels_shift=1.5))
    return Shipped(bundle, shop.ship(bundle))


@pytest.fixture(scope="module")
def unsent(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    features = (*FEATURES, "velocity")
    directory = tmp_path_factory.mktemp("unsent")
    bundle = build(directory / "features", booster(more=("velocity",)), features=features)
    return Shipped(bundle, shop.ship(bundle))


def test_a_model_that_is_not_finite_is_stopped_by_its_error_rate(shop: Shop, infinite: Shipped) -> None:
    bundle, detail = infinite.bundle, infinite.detail
    assert detail.change.state is ChangeState.REJECTED
    assert "error_rate" in blocking(detail)
    gate = gates(detail)["error_rate"]
    assert gate.value > 0 and gate.rows > 0 and "non_finite" in gate.words
    assert "TEST" in shop.refused(bundle)


def test_a_model_with_shifted_scores_is_stopped_by_their_distribution(shop: Shop, shifted: Shipped) -> None:
    bundle, detail = shifted.bundle, shifted.detail
    assert detail.change.state is ChangeState.REJECTED
    assert {"flip_rate", "approve_rate_delta"} <= blocking(detail), [gate.words for gate in detail.gates]
    assert "tail_correlation" in gates(detail)
    assert "error_rate" not in blocking(detail)
    assert "TEST" in shop.refused(bundle)


def test_a_model_with_features_that_are_not_sent_is_stopped_by_their_parity(
    shop: Shop, unsent: Shipped
) -> None:
    bundle, detail = unsent.bundle, unsent.detail
    assert detail.change.state is ChangeState.REJECTED
    assert "feature_parity_rate" in blocking(detail), [gate.words for gate in detail.gates]
    (fit,) = [step for step in detail.steps if step.name == "fit"]
    assert "velocity" in fit.words
    assert "TEST" in shop.refused(bundle)


def test_a_model_that_exceeds_the_sla_is_stopped(server: RunningServer, tmp_path: Path) -> None:
    slow = edited(booster(), lambda trees: [dict(tree) for _ in range(2500) for tree in trees])
    bundle = build(tmp_path / "slow", slow)
    # Twenty thousand trees with an SLA of ten microseconds.
    shop = Shop(server, p99_ms=0.01)
    try:
        # Loading so many trees takes seconds. A shorter slot would end before the observation starts.
        detail = shop.ship(bundle, minutes=0.4)
        assert detail.change.state is ChangeState.REJECTED
        (stopped,) = [step for step in detail.steps if step.status == "failed"]
        assert stopped.name in ("warm-up", "measure", "report"), stopped
        if stopped.name == "warm-up":
            assert "the SLA is 0.01 ms" in stopped.words
        else:
            assert "exec_p99_us" in blocking(detail)
        assert "TEST" in shop.refused(bundle)
    finally:
        shop.platform.close()


def test_the_page_of_each_change_request_shows_its_evidence(
    shop: Shop, infinite: Shipped, shifted: Shipped, unsent: Shipped
) -> None:
    rejected = shop.service.changes.list(shop.people["ari"], state=ChangeState.REJECTED)
    shipped = {one.detail.change.id for one in (infinite, shifted, unsent)}
    assert shipped <= {change.id for change in rejected}
    for change in (change for change in rejected if change.id in shipped):
        readout = shop.service.readouts.readout(shop.people["ari"], change.id)
        assert readout.is_final and readout.verdict is Outcome.FAIL and readout.rows > 300
        assert {"scores", "flips", "execution"} <= {figure.name for figure in readout.figures}
        view = shop.service.checkpoints.view(shop.people["ari"], CHECKPOINT)
        assert [lane.name for lane in view.recorded.observe] == []
        assert change.updated_at - change.created_at < timedelta(minutes=10)


def test_the_answer_lanes_never_changed(shop: Shop, server: RunningServer) -> None:
    view = shop.service.checkpoints.view(shop.people["dana"], CHECKPOINT)
    live = Registry(server.directory / "registry").resolve("fraud-checkout@live").digest
    assert {lane.bundle for lane in view.recorded.answer} == {live}
    assert all(member.in_step for member in view.members)
