"""Measure loading a bundle: read and hash its bytes, validate the forest, score every golden case."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from loadtests.engine.models import FEATURES, Spec, booster, sample
from loadtests.engine.race import PythonCalls, race
from loadtests.figures import Figures
from loadtests.options import WORK, Options

COMMAND: Final = "make bench ARGS=engine"
SPEC: Final = Spec(1000, 8)
MOST_MS: Final = 150.0


def run(figures: Figures, options: Options) -> None:
    """Build the bundle once, then load it repeatedly."""
    from scorer.bundle import Band, Bundle, Feature, Lineage, SchemaFile, build_score_bundle

    spec = replace(SPEC, trees=20) if options.smoke else SPEC
    model, (rows, _) = booster(spec), sample(spec)
    model.feature_names = [f"f{i}" for i in range(FEATURES)]
    path = WORK / "given/bundle"
    shutil.rmtree(path, ignore_errors=True)
    build_score_bundle(
        path,
        name="bench",
        model=model,
        schema=SchemaFile(features=[Feature(name=name) for name in model.feature_names]),
        bands=[Band(start=0, label="approve"), Band(start=0.5, label="decline")],
        training=rows[:10_000],
        validation=rows[10_000:],
        lineage=Lineage(data_digest="sha256:simulated", code_version="bench", run_id="bench", metrics={}),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    lap = race({"ours": PythonCalls([lambda: Bundle.load(path)])}, seconds=0.1 if options.smoke else 5.0)[
        "ours"
    ]
    figures.add(
        name=f"{spec.words}, load from its bundle, validated and golden-checked",
        ours=lap.scaled(1e3),
        unit="ms",
        target=MOST_MS,
        command=COMMAND,
    )
