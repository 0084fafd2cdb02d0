"""The model that all servers serve, the rows that are sent, and the expected scores."""

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
    """A model in the formats that servers read.

    Attributes:
        model: XGBoost's own file.
        bundle: The model as a bundle.
        digest: The bundle's digest.
        fingerprint: The schema's fingerprint.
        rows: `[ROWS, FEATURES]` float32, with missing values.
        scores: `[ROWS]` XGBoost's probabilities of the rows.
    """

    model: Path
    bundle: Path
    digest: str
    fingerprint: int
    rows: Any
    scores: Any

    def score_requests(self, checkpoint: str = CHECKPOINT) -> list[bytes]:
        """Return one ScoreRequest per row, with the features as a dense vector."""
        from scorer.v1 import scoring_pb2 as pb

        return [
            pb.ScoreRequest(
                checkpoint=checkpoint,
                dense=pb.DenseFeatures(schema_fingerprint=self.fingerprint, values=row.tolist()),
            ).SerializeToString()
            for row in self.rows
        ]

    def batch_requests(self, size: int, checkpoint: str = CHECKPOINT) -> list[bytes]:
        """Return one ScoreBatchRequest of `size` rows, in a list."""
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
        """Return `{"rows": [[..]]}` for each row. Missing values are null, because JSON has no NaN."""

        def plain(row: Sequence[float]) -> list[float | None]:
            # The shortest text that is read back as the same float32.
            return [None if np.isnan(value) else float(str(value)) for value in row]

        return [json.dumps({"rows": [plain(row)]}, separators=(",", ":")).encode() for row in self.rows]


def subject(trees: int = 500, depth: int = 6) -> Subject:
    """Return the model, which is trained and built into a bundle on the first call and then reused."""
    spec = Spec(trees, depth)
    return _subject(booster(spec), f"{trees}x{depth}")


# The heavy model repeats the trees of a smaller one. Its results are of no use, but its cost is realistic.
_REPEATED: Final = 12


def heavy(trees: int = 1000, depth: int = 8) -> Subject:
    """Return a model so slow that a generator on one core can offer ten times a server's throughput."""
    import xgboost as xgb

    single = booster(Spec(trees, depth))
    kept = WORK / f"models/{_digest(single)}-times-{_REPEATED}.json"
    if not kept.exists():
        document = json.loads(single.save_raw("json"))
        inner = document["learner"]["gradient_booster"]["model"]
        # Each leaf is divided by the number of repetitions, so that the margins stay the same.
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
    """Return a digest of the model's content, so that results of another model are not reused."""
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
    """Return whether the bundle exists in the current format."""
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
    """Return the bytes of a score as a float32."""
    return struct.pack("<f", score)
