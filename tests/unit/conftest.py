"""Fixtures: small trained bundles, built once per session, and a controller over a fake data plane."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from control_world import World
from fakes import fake_verify
from trained import (
    ACTION_FEATURES,
    ACTIONS,
    BANDS,
    CONTEXT,
    CREATED,
    LINEAGE,
    SALT,
    Trained,
    contexts,
    labels_of,
    train,
)

from scorer.bundle import HeldOut, PolicySpec, SchemaFile, verify
from scorer.registry import Registry


@pytest.fixture(scope="session")
def score_bundle(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    from scorer.bundle import build_score_bundle

    rows = contexts(3000)
    labels = labels_of(rows)
    schema = SchemaFile(features=CONTEXT)
    model = train(rows[:2000], labels[:2000], [feature.name for feature in CONTEXT])
    path = tmp_path_factory.mktemp("bundles") / "fraud"
    build_score_bundle(
        path,
        name="fraud-checkout",
        model=model,
        schema=schema,
        bands=BANDS,
        training=rows[:2000],
        validation=rows[2000:],
        calibration=HeldOut(rows[2000:], labels[2000:]),
        lineage=LINEAGE,
        created_at=CREATED,
    )
    return Trained(path, verify(path), model, schema, rows, labels)


@pytest.fixture(scope="session")
def bare_bundle(score_bundle: Trained, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A bundle of a forest that was read from a file, and therefore has no covers."""
    from scorer.bundle import build_score_bundle
    from scorer.forest import Forest

    forest = Forest.from_bytes(Forest.from_xgboost(score_bundle.model).to_bytes())
    path = tmp_path_factory.mktemp("bundles") / "bare"
    rows = score_bundle.rows
    build_score_bundle(
        path,
        name="fraud-checkout",
        model=forest,
        margins=lambda rows: forest.predict(rows, margin=True),
        schema=score_bundle.schema,
        bands=BANDS,
        training=rows[:500],
        validation=rows[500:1000],
        lineage=LINEAGE,
        created_at=CREATED,
    )
    return Trained(path, verify(path), score_bundle.model, score_bundle.schema, rows, score_bundle.labels)


@pytest.fixture(scope="session")
def action_bundle(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    from scorer.bundle import build_action_bundle

    rows = contexts(3000)
    taken = np.random.default_rng(3).integers(0, len(ACTIONS), len(rows))
    own = np.array([action.features for action in ACTIONS], dtype=np.float32)
    whole = np.concatenate([rows, own[taken]], axis=1)
    labels = labels_of(whole)
    schema = SchemaFile(features=CONTEXT, action_features=ACTION_FEATURES)
    model = train(whole[:2000], labels[:2000], [feature.name for feature in schema.columns])
    path = tmp_path_factory.mktemp("bundles") / "authorise"
    build_action_bundle(
        path,
        name="authorise",
        model=model,
        schema=schema,
        actions=ACTIONS,
        policy=PolicySpec(rule="squarecb", gamma=50, floor=0.06, salt=SALT),
        training=rows[:2000],
        validation=rows[2000:],
        calibration=HeldOut(rows[2000:], labels[2000:], taken[2000:], "sigmoid"),
        lineage=LINEAGE,
        created_at=CREATED,
    )
    return Trained(path, verify(path), model, schema, rows, labels)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, Registry(tmp_path / "registry", verify=fake_verify))
    world.push("a", live=True)
    world.push("x", "action-authorise", live=True)
    return world
