"""Bundles of payments whose frauds are known, and a log in which a live one has scored them.

`build` makes a bundle that flags about 3 % of the payments; `decisions` and `outcome` make records of a log,
and `backtest_job` a backtest on it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xgboost
from bundles import CREATED, FEATURES, rows
from logs import write_segment

from scorer.bundle import Band, Bundle, Feature, Lineage, SchemaFile, build_score_bundle
from scorer.release.backtest.job import Job
from scorer.release.gates.defaults import BACKTEST
from scorer.stats.blocks import DAY_US
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, OutcomeRecord

CHECKPOINT = "fraud.checkout"
COUNT = 12_000
BEGIN = 1_760_000_000_000_000
RANDOM = np.random.default_rng(5)
DATA = rows(COUNT, seed=77)
FRAUD = RANDOM.random(COUNT) < 1 / (1 + np.exp(-(DATA[:, 0] / 25 + DATA[:, 2] / 1.2 - 9.5)))


def build(directory: Path, *, labels: Any = None, names: tuple[str, ...] = FEATURES, seed: int = 1) -> Path:
    """Build a bundle that flags about 3 % of the payments. `seed` and `labels` give another training set."""
    data = rows(20_000, seed=seed)
    odds = data[:, 0] / 25 + data[:, 2] / 1.2 - 9.5
    target = np.random.default_rng(seed).random(len(data)) < 1 / (1 + np.exp(-odds))
    target = target if labels is None else labels(target)
    order = [FEATURES.index(name) if name in FEATURES else 0 for name in names]
    model = xgboost.train(
        {"objective": "binary:logistic", "max_depth": 3, "seed": seed, "nthread": 1},
        xgboost.DMatrix(data[:, order], target, feature_names=list(names)),
        30,
    )
    own = model.predict(xgboost.DMatrix(data[:, order], feature_names=list(names)))
    review, decline = (float(np.quantile(own, q)) for q in (0.97, 0.995))
    build_score_bundle(
        directory,
        name="fraud-checkout",
        model=model,
        schema=SchemaFile(features=[Feature(name=name) for name in names]),
        bands=[
            Band(start=0.0, label="approve"),
            Band(start=review, label="review"),
            Band(start=max(decline, review + 1e-6), label="decline"),
        ],
        training=data[:1500, order],
        validation=data[1500:3000, order],
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="test", run_id=f"{seed}"),
        golden_cases=256,
        created_at=CREATED,
    )
    return directory


def decisions(live: Path, begin: int = BEGIN, **other: Any) -> list[bytes]:
    bundle = Bundle.load(live)
    scored = bundle.score(DATA)
    return [
        LogRecord(
            decision=DecisionRecord(
                **{
                    "decision_id": f"payment-{number}",
                    "checkpoint": CHECKPOINT,
                    "bundle": bytes.fromhex(bundle.digest.removeprefix("sha256:")),
                    "schema_fingerprint": bundle.schema_fingerprint,
                    "decided_at_us": begin + number * (28 * DAY_US // COUNT),
                    "features": DATA[number].tolist(),
                    "score": scored.scores[number],
                    "decision": bundle.labels[scored.bands[number]],
                    **other,
                }
            )
        ).SerializeToString()
        for number in range(COUNT)
    ]


def outcome(number: int, value: float = 1.0, **other: Any) -> bytes:
    record = OutcomeRecord(
        checkpoint=CHECKPOINT, decision_id=f"payment-{number}", kind="fraud", value=value, **other
    )
    return LogRecord(outcome=record).SerializeToString()


def known_log(directory: Path, live: Path, begin: int = BEGIN) -> Path:
    """Write the log of a server that knows the outcome of every payment, including declined ones.

    The decisions are those of four weeks from `begin` on, microseconds since the Unix epoch.
    """
    reports = [outcome(number, float(FRAUD[number])) for number in range(COUNT)]
    write_segment(directory, 1, 1, [*decisions(live, begin), *reports])
    return directory


def backtest_job(log: Path, live: Path, candidate: Path, **other: Any) -> Job:
    """Return a backtest over the four weeks of the log."""
    return Job(
        **{
            "checkpoint": CHECKPOINT,
            "candidate": str(candidate),
            "live": str(live),
            "others": (),
            "logs": {"live-1": str(log)},
            "begin": BEGIN,
            "end": BEGIN + 28 * DAY_US,
            "outcome": "fraud",
            "unproven": "exclude",
            "approve": "approve",
            "amount": "amount",
            "most": 1_000_000,
            "positives": 30,
            "gates": BACKTEST,
            **other,
        }
    )
