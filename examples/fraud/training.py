"""Training of a fraud model: boosted trees, a calibrated probability, thresholds for decisions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xgboost

from examples.columns import column
from examples.fraud.features import FEATURES
from examples.fraud.metrics import Ranking, ranking
from examples.fraud.split import Days, Split, without_known
from examples.fraud.transactions import Transactions
from scorer.bundle import Feature, IsotonicMap
from scorer.bundle.calibrate import fit_centred_isotonic
from scorer.learn.errors import DataError
from scorer.learn.fraud.training import calibrated

Rows = npt.NDArray[np.intp]


# More rows do not change the distributions visibly.
REFERENCE_ROWS = 20_000


@dataclass(frozen=True)
class FraudPlan:
    """Settings of the training.

    Attributes:
        trees: Number of boosting rounds.
        depth: Depth of each tree.
        learning_rate: Learning rate of each round.
        decline_rate: Share of transactions to decline.
        review_rate: Share of transactions to send to review.
        threads: Number of threads for training.
        seed: Seed of row and column sampling.
    """

    trees: int = 500
    depth: int = 6
    learning_rate: float = 0.05
    decline_rate: float = 0.003
    review_rate: float = 0.007
    threads: int = 2
    seed: int = 0


@dataclass(frozen=True)
class FraudModel:
    """A trained fraud model and its measures.

    Attributes:
        booster: The trees.
        calibration: Maps the trees' own probability to a calibrated one.
        thresholds: (start, label) of each band, ascending from 0.
        training_rows: `[n, 15]` features of the training days, at most `REFERENCE_ROWS` rows.
        reference_rows: `[n, 15]` features of the calibration days, at most `REFERENCE_ROWS` rows.
        metrics: Measures on the test days, with their numbers of rows and frauds.
        split: The blocks of days.
        plan: The settings of the training.
        data_digest: Digest of the transactions.
    """

    booster: xgboost.Booster
    calibration: IsotonicMap
    thresholds: tuple[tuple[float, str], ...]
    training_rows: npt.NDArray[np.float32]
    reference_rows: npt.NDArray[np.float32]
    metrics: Ranking
    split: Split
    plan: FraudPlan
    data_digest: str

    def scores(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return `[n]` calibrated probabilities."""
        return calibrated(np.asarray(self.booster.predict(xgboost.DMatrix(rows))), self.calibration)

    def lineage(self) -> dict[str, Any]:
        """Return the lineage for the bundle: data, settings and measures."""
        return {"plan": asdict(self.plan), "split": asdict(self.split), "test": self.metrics.as_dict()}


def fraud_columns() -> tuple[Feature, ...]:
    """Return the request schema of the fraud model, in the order of `FEATURES`."""
    return tuple(
        column(name, "flag")
        if name in {"weekend", "night"}
        else column(name, "number", minimum=0.0, maximum=1.0 if "_risk_" in name else 1e7)
        for name in FEATURES
    )


def train_fraud(
    transactions: Transactions,
    rows: npt.NDArray[np.float32],
    split: Split,
    plan: FraudPlan | None = None,
    delay_days: int = 7,
    data_digest: str | None = None,
) -> FraudModel:
    """Train on the split's training days, calibrate on the days after, and evaluate on the test days.

    Args:
        transactions: All transactions.
        rows: `[n, 15]` their features.
        split: The blocks of days.
        plan: The settings of the training; None: the defaults.
        delay_days: Number of days until a fraud is known.
        data_digest: Digest of the transactions, if it is known.

    Raises:
        DataError: A block of days lacks frauds or genuine transactions.
    """
    plan = plan or FraudPlan()
    training = split.training.rows(transactions)
    calibration = split.calibration.rows(transactions)
    for name, block in (("training", training), ("calibration", calibration)):
        frauds = int(transactions.fraud[block].sum())
        if not 0 < frauds < len(block):
            raise DataError(
                f"the {name} days contain {len(block)} transactions and {frauds} frauds; "
                "both kinds are needed"
            )
    booster = xgboost.train(
        {
            "objective": "binary:logistic",
            "tree_method": "hist",
            "max_depth": plan.depth,
            "learning_rate": plan.learning_rate,
            "min_child_weight": 2,
            "subsample": 0.8,
            "colsample_bytree": 0.8,
            "nthread": plan.threads,
            "seed": plan.seed,
        },
        xgboost.DMatrix(rows[training], transactions.fraud[training], feature_names=list(FEATURES)),
        plan.trees,
    )
    booster.feature_names = None
    outputs = booster.predict(xgboost.DMatrix(rows[calibration]))
    curve = fit_centred_isotonic(outputs, transactions.fraud[calibration])
    reference = calibrated(outputs, curve)
    test = test_rows(transactions, split, delay_days)
    scores = calibrated(booster.predict(xgboost.DMatrix(rows[test])), curve)
    return FraudModel(
        booster=booster,
        calibration=curve,
        thresholds=thresholds(reference, plan.review_rate, plan.decline_rate),
        training_rows=rows[_some(training)],
        reference_rows=rows[_some(calibration)],
        metrics=ranking(
            scores, transactions.fraud[test], transactions.customer[test], transactions.day[test]
        ),
        split=split,
        plan=plan,
        data_digest=data_digest or transactions.digest(),
    )


def _some(rows: Rows) -> Rows:
    """Return at most `REFERENCE_ROWS` of the rows, evenly spread."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), REFERENCE_ROWS)).astype(np.intp))]


def test_rows(transactions: Transactions, split: Split, delay_days: int = 7) -> Rows:
    """Return the transactions that evaluate a model: the test days without customers known to be compromised.

    As in the book, these are the customers with frauds in the last week whose frauds are known when the test
    begins.
    """
    until = split.test.first - delay_days
    return without_known(transactions, Days(max(0, until - 7), until), split.test, delay_days)


def thresholds(
    scores: npt.NDArray[np.float64], review_rate: float, decline_rate: float
) -> tuple[tuple[float, str], ...]:
    """Return bands that decline and review these shares of `scores`, as (start, label) from 0 upwards."""
    review, decline = np.quantile(scores, [1 - decline_rate - review_rate, 1 - decline_rate])
    # Bands must not coincide, even if there are few different scores.
    review = max(review, np.nextafter(0.0, 1.0))
    return (
        (0.0, "approve"),
        (float(review), "review"),
        (float(max(decline, np.nextafter(review, np.inf))), "decline"),
    )
