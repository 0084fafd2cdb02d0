"""Tests that features, split and measures reproduce the figures that the handbook publishes for its data."""

from __future__ import annotations

import numpy as np
import pytest

from examples.datasets import HANDBOOK, dataset, present
from examples.fraud.features import features
from examples.fraud.metrics import ranking
from examples.fraud.split import Days, without_known
from examples.fraud.transactions import read_transactions


@pytest.mark.skipif(not present(HANDBOOK), reason=f"needs {HANDBOOK} in SCORER_DATASETS")
def test_reference_model_reaches_the_published_figures():
    xgboost = pytest.importorskip("xgboost")
    transactions = read_transactions(dataset(HANDBOOK))
    rows = features(transactions)
    first = int((np.datetime64("2018-07-25") - np.datetime64(transactions.date(0))).astype(int))
    training, test = Days(first, first + 7), Days(first + 14, first + 21)
    fit = training.rows(transactions)
    judged = without_known(transactions, training, test, delay=7)

    booster = xgboost.train(
        {"objective": "binary:logistic", "max_depth": 4, "learning_rate": 0.1, "nthread": 2},
        xgboost.DMatrix(rows[fit], transactions.fraud[fit]),
        200,
    )
    measured = ranking(
        booster.predict(xgboost.DMatrix(rows[judged])),
        transactions.fraud[judged],
        transactions.customer[judged],
        transactions.day[judged],
    )

    assert measured.auc == pytest.approx(0.884, abs=0.005)
    assert measured.average_precision == pytest.approx(0.643, abs=0.01)
    assert measured.card_precision_100 == pytest.approx(0.357, abs=0.01)
