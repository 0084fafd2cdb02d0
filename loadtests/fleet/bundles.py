"""A small action bundle and revisions of its overlay, in a registry."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from loadtests.fleet.servers import BUNDLE
from scorer.bundle import (
    Action,
    Feature,
    Lineage,
    OverlaySpec,
    PolicySpec,
    SchemaFile,
    build_action_bundle,
    revise,
)
from scorer.registry import Registry

COUNTRIES = ("DE", "NL")
ROUTES = ("A", "B", "C")


def publish(directory: Path, registry: Path, revisions: int) -> list[str]:
    """Push a bundle, which becomes live, and revisions of its overlay; return their digests in this order.

    Args:
        directory: Directory that the bundles are built in.
        registry: Directory of the registry.
        revisions: Number of revisions.
    """
    own = Registry(registry)
    path = directory / "bundle"
    digests = [_build(path)]
    own.push(path)
    own.alias(BUNDLE, "live", digests[0])
    for number in range(revisions):
        output = directory / f"revision-{number}"
        offsets = {"route": {route: 0.1 * (number + at + 1) for at, route in enumerate(ROUTES)}}
        overlay = OverlaySpec(segment="country", limit=2.0, segments={"DE": offsets})
        digests.append(revise(path, output, overlay=overlay).digest)
        own.push(output)
        path = output
    return digests


def _build(path: Path) -> str:
    import xgboost

    random = np.random.default_rng(1)
    count = 600
    rows = np.column_stack([random.uniform(1, 200, count), random.integers(0, 2, count)]).astype(np.float32)
    action = random.integers(0, len(ROUTES), count).astype(np.float32)
    labels = (random.random(count) < 0.3 + 0.2 * (action == rows[:, 1])).astype(np.float32)
    matrix = xgboost.DMatrix(
        np.column_stack([rows, action]), labels, feature_names=["amount", "country", "action_route"]
    )
    model = xgboost.train({"objective": "binary:logistic", "max_depth": 2, "nthread": 1}, matrix, 4)
    built = build_action_bundle(
        path,
        name=BUNDLE,
        model=model,
        schema=SchemaFile(
            features=[
                Feature(name="amount"),
                Feature(name="country", type="category", categories=list(COUNTRIES)),
            ],
            action_features=[Feature(name="action_route")],
        ),
        actions=[
            Action(id=f"route={route}", factors={"route": route}, features=[float(at)])
            for at, route in enumerate(ROUTES)
        ],
        policy=PolicySpec(rule="epsilon_greedy", epsilon=0.2, floor=0.01, salt="0" * 32),
        training=rows[:400],
        validation=rows[400:],
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="fleet", run_id="fleet"),
        golden_cases=256,
    )
    return built.digest
