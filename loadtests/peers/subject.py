"""What all servers serve: one model, the rows it is asked about, and the scores that must come back."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadtests.engine.models import FEATURES, Spec, booster, sample
from loadtests.options import WORK

CHECKPOINT: Final = "fraud.checkout"
NAME: Final = "fraud-checkout"
ROWS: Final = 1_000


@dataclass(frozen=True)
class Subject:
    """A model in the forms that servers take it in.

    Attributes:
        model: XGBoost's own file.
        bundle: The same as a bundle.
        digest: The bundle's.
        fingerprint: The schema's.
        rows: Float32, `ROWS` by `FEATURES`, with missing values.
        scores: XGBoost's probabilities for them.
    """

    model: Path
    bundle: Path
    digest: str
    fingerprint: int
    rows: Any
    scores: Any

    def score_requests(self, checkpoint: str = CHECKPOINT) -> list[bytes]:
        """A ScoreRequest per row, features as a dense vector."""
        from scorer.v1 import scoring_pb2 as pb

        return [
            pb.ScoreRequest(
                checkpoint=checkpoint,
                dense=pb.DenseFeatures(schema_fingerprint=self.fingerprint, values=row.tolist()),
            ).SerializeToString()
            for row in self.rows
        ]

    def batch_requests(self, size: int, checkpoint: str = CHECKPOINT) -> list[bytes]:
        """A few ScoreBatchRequests of so many rows."""
        from scorer.v1 import scoring_pb2 as pb

        times = -(-size // len(self.rows))
        values = np.concatenate([self.rows] * times)[:size]
        request = pb.ScoreBatchRequest(
            checkpoint=checkpoint,
            schema_fingerprint=self.fingerprint,
            values=values.reshape(-1).tolist(),
            rows=size,
        )
        return [request.SerializeToString()]

    def json_requests(self) -> list[bytes]:
        """`{"rows": [[..]]}` per row; a missing value is null, for JSON has no NaN."""

        def plain(row: Sequence[float]) -> list[float | None]:
            # The shortest text that reads back as the same float32.
            return [None if np.isnan(value) else float(str(value)) for value in row]

        return [json.dumps({"rows": [plain(row)]}, separators=(",", ":")).encode() for row in self.rows]


def subject(trees: int = 500, depth: int = 6) -> Subject:
    """The model, trained and built into a bundle once and kept."""
    spec = Spec(trees, depth)
    return _subject(booster(spec), f"{trees}x{depth}")


# The heavy model: so many times the trees of a smaller one. What they say is of no use, what they cost is.
_REPEATED: Final = 12


def heavy(trees: int = 1000, depth: int = 8) -> Subject:
    """A model so slow that a generator on one core can offer ten times what a server on another can do."""
    import xgboost as xgb

    single = booster(Spec(trees, depth))
    kept = WORK / f"models/{_digest(single)}-times-{_REPEATED}.json"
    if not kept.exists():
        document = json.loads(single.save_raw("json"))
        inner = document["learner"]["gradient_booster"]["model"]
        # Each tree says a part of what it said, so that probabilities stay probabilities.
        for tree in inner["trees"]:
            leaves = [left == -1 for left in tree["left_children"]]
            values = zip(tree["split_conditions"], leaves, strict=True)
            tree["split_conditions"] = [value / _REPEATED if leaf else value for value, leaf in values]
            tree["base_weights"] = [value / _REPEATED for value in tree["base_weights"]]
        inner["trees"] = [tree | {"id": i} for i, tree in enumerate(inner["trees"] * _REPEATED)]
        inner["tree_info"] *= _REPEATED
        inner["iteration_indptr"] = list(range(len(inner["trees"]) + 1))
        inner["gbtree_model_param"]["num_trees"] = str(len(inner["trees"]))
        kept.with_suffix(".new").write_text(json.dumps(document, separators=(",", ":")))
        kept.with_suffix(".new").rename(kept)
    return _subject(xgb.Booster({"nthread": 1}, model_file=kept), f"{trees * _REPEATED}x{depth}")


def _digest(model: Any) -> str:
    """Of the model's content: what was made of another one is not taken for its own."""
    return hashlib.sha256(model.save_raw("ubj")).hexdigest()[:16]


def _subject(model: Any, words: str) -> Subject:
    from scorer import Bundle

    folder = WORK / f"serving-{words}-{_digest(model)}"
    file, bundle = folder / "model.ubj", folder / "bundle"
    if not _loads(bundle):
        shutil.rmtree(bundle, ignore_errors=True)
        sys.stdout.write(f"   building the bundle in {folder.name}\n")
        sys.stdout.flush()
        folder.mkdir(parents=True, exist_ok=True)
        # Named features would have to be named in each of XGBoost's calls.
        model.save_model(file)
        _build(model, bundle)
        model.feature_names = None
    loaded = Bundle.load(bundle)
    rows = sample(Spec(500, 6))[0][:ROWS]
    return Subject(file, bundle, loaded.digest, loaded.schema_fingerprint, rows, model.inplace_predict(rows))


def _loads(bundle: Path) -> bool:
    """Whether it is there and of this version's format."""
    from scorer import Bundle, ScorerError

    try:
        Bundle.load(bundle)
    except ScorerError:
        return False
    return True


def _build(model: Any, directory: Path) -> None:
    from scorer.bundle import Band, Feature, Lineage, SchemaFile, build_score_bundle

    rows = sample(Spec(500, 6))[0]
    model.feature_names = [f"f{i}" for i in range(FEATURES)]
    build_score_bundle(
        directory,
        name=NAME,
        model=model,
        schema=SchemaFile(features=[Feature(name=name) for name in model.feature_names]),
        bands=[
            Band(start=start, label=label)
            for label, start in (("approve", 0.0), ("review", 0.4), ("decline", 0.8))
        ],
        training=rows[:4000],
        validation=rows[4000:6000],
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="bench", run_id="bench"),
        golden_cases=256,
    )


def bits(score: float) -> bytes:
    """Of a float32."""
    return struct.pack("<f", score)
