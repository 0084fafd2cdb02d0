"""The demo's fraud model: trees and calibration of `scorer.learn.fraud` on blocks of days, with fixed shares.

`scorer learn fraud train` also chooses thresholds on value and has a baseline. The demo has few days of
transactions, so it has no delay between training and calibration, and declines and reviews fixed shares.
"""

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
from scorer.learn.fraud.learners import fit_trees
from scorer.learn.fraud.settings import FraudSettings
from scorer.learn.fraud.table import FraudTable
from scorer.learn.fraud.training import calibrated, some_rows

Rows = npt.NDArray[np.intp]


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

    def settings(self) -> FraudSettings:
        """Return the settings of the trees."""
        return FraudSettings(
            trees=self.trees,
            depth=self.depth,
            learning_rate=self.learning_rate,
            min_child_weight=2.0,
            subsample=0.8,
            colsample=0.8,
            l2=1.0,
            threads=self.threads,
            seed=self.seed,
        )


@dataclass(frozen=True)
class FraudModel:
    """A trained fraud model and its measures.

    Attributes:
        booster: The trees.
        calibration: Maps the trees' own probability to a calibrated one.
        thresholds: (start, label) of each band, ascending from 0.
        training_rows: `[n, 15]` features of the training days; some of the rows.
        reference_rows: `[n, 15]` features of the calibration days; some of the rows.
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
    fitted = fit_trees("xgboost", table_of(transactions, rows), training, plan.settings())
    outputs = fitted.predict(rows[calibration])
    curve = fit_centred_isotonic(outputs, transactions.fraud[calibration])
    reference = calibrated(outputs, curve)
    test = test_rows(transactions, split, delay_days)
    scores = calibrated(fitted.predict(rows[test]), curve)
    return FraudModel(
        booster=fitted.model,
        calibration=curve,
        thresholds=thresholds(reference, plan.review_rate, plan.decline_rate),
        training_rows=rows[some_rows(training)],
        reference_rows=rows[some_rows(calibration)],
        metrics=ranking(
            scores, transactions.fraud[test], transactions.customer[test], transactions.day[test]
        ),
        split=split,
        plan=plan,
        data_digest=data_digest or transactions.digest(),
    )


def table_of(transactions: Transactions, rows: npt.NDArray[np.float32]) -> FraudTable:
    """Return transactions with their features as the data of `scorer.learn.fraud`.

    Args:
        transactions: The transactions, in order of time.
        rows: `[n, 15]` their features.
    """
    return FraudTable(
        features=fraud_columns(),
        rows=rows,
        time_ms=transactions.time_ms,
        label=transactions.fraud == 1,
        weight=np.ones(len(transactions)),
        known_ms=None,
        entity=np.unique(transactions.customer, return_inverse=True)[1],
        amount=transactions.amount,
        repeated=np.zeros(len(transactions), bool),
        digest="",
    )


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
