"""Tests of training both models on small simulated data, and of the results of their bundles."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xgboost
from sklearn.metrics import roc_auc_score

from examples.columns import named_row
from examples.fraud.bundles import build_fraud
from examples.fraud.features import FEATURES, features
from examples.fraud.split import SplitPlan
from examples.fraud.training import FraudPlan, fraud_columns, test_rows, train_fraud
from examples.oracle import LoggedChoices, OraclePlan, build_oracle, near_greedy, train_oracle
from examples.simulators.payments import Payments, contexts, log_baseline
from examples.simulators.task import CONTEXT, authorise_task, choices, context_rows, mask_bytes
from examples.simulators.transactions import TransactionPlan, simulate_transactions
from scorer.bundle import Bundle
from scorer.learn.errors import DataError

# pytest would collect the name as a test.
rows_that_judge = test_rows
del test_rows


@pytest.fixture(scope="module")
def transactions():
    return simulate_transactions(TransactionPlan(customers=1_000, terminals=3_000, days=40), seed=1)


@pytest.fixture(scope="module")
def rows(transactions):
    return features(transactions)


@pytest.fixture(scope="module")
def fraud(transactions, rows):
    split = SplitPlan().last(transactions)
    return train_fraud(transactions, rows, split, FraudPlan(trees=40, depth=4))


@pytest.fixture(scope="module")
def logged(transactions, rows, fraud):
    some = transactions.take(np.arange(8_000))
    return log_baseline(Payments(), contexts(some, fraud.scores(rows[:8_000]), seed=1), seed=1)


@pytest.fixture(scope="module")
def oracle(logged):
    result = choices(logged)
    return train_oracle(
        authorise_task(), result, result.digest(), OraclePlan(trees=60, depth=4, learning_rate=0.1)
    )


class TestFraud:
    def test_the_model_finds_fraud_and_reports_its_quality(self, transactions, rows, fraud):
        judged = rows_that_judge(transactions, fraud.split)
        scores = fraud.scores(rows[judged])
        assert fraud.metrics.auc == pytest.approx(roc_auc_score(transactions.fraud[judged], scores))
        assert fraud.metrics.auc > 0.7
        assert fraud.metrics.rows == len(judged)

    def test_the_model_is_calibrated_on_days_without_training(self, transactions, rows, fraud):
        held = fraud.split.calibration.rows(transactions)
        assert fraud.scores(rows[held]).mean() == pytest.approx(transactions.fraud[held].mean(), rel=0.1)

    def test_the_result_depends_on_the_seed_only(self, transactions, rows, fraud):
        again = train_fraud(transactions, rows, fraud.split, fraud.plan)
        assert again.booster.save_raw() == fraud.booster.save_raw()
        assert again.data_digest == fraud.data_digest

    def test_labels_of_the_delay_and_of_the_test_days_are_not_used(self, transactions, rows, fraud):
        hidden = transactions.fraud.copy()
        hidden[transactions.day >= fraud.split.calibration.end] = 0
        blind = type(transactions)(**{**vars_of(transactions), "fraud": hidden})
        # The evaluation needs a fraud. One is enough, and it cannot affect the model.
        blind.fraud[-1] = 1
        blind_rows = features(blind)
        until = fraud.split.calibration.rows(transactions)[-1]
        assert np.array_equal(blind_rows[: until + 1], rows[: until + 1])
        again = train_fraud(blind, blind_rows, fraud.split, fraud.plan)
        assert again.booster.save_raw() == fraud.booster.save_raw()

    def test_days_without_fraud_are_refused(self, transactions, rows, fraud):
        clean = type(transactions)(**{**vars_of(transactions), "fraud": np.zeros_like(transactions.fraud)})
        with pytest.raises(DataError, match=r"the training days contain .* 0 frauds"):
            train_fraud(clean, rows, fraud.split, fraud.plan)

    def test_the_bundle_scores_like_the_model(self, tmp_path, transactions, rows, fraud):
        built = build_fraud(fraud, tmp_path / "fraud", "run-1")
        bundle = Bundle.load(built.path, built.digest)
        some = rows[-3_000:]
        answered = bundle.score(some)
        margins = fraud.booster.predict(xgboost.DMatrix(some), output_margin=True)
        assert np.array_equal(answered.margins, margins.astype(np.float64))
        np.testing.assert_allclose(answered.scores, fraud.scores(some), rtol=1e-6)
        starts = np.array([start for start, _ in fraud.thresholds])
        assert np.array_equal(answered.bands, np.searchsorted(starts, answered.scores, side="right") - 1)
        manifest = json.loads((built.path / "manifest.json").read_text())
        assert manifest["name"] == "fraud-checkout"
        assert manifest["lineage"]["data_digest"] == transactions.digest()
        assert manifest["lineage"]["run_id"] == "run-1"
        assert manifest["lineage"]["metrics"]["test"]["auc"] == pytest.approx(fraud.metrics.auc)

    def test_the_schema_has_the_features_in_their_order(self):
        assert tuple(column.name for column in fraud_columns()) == FEATURES


class TestOracle:
    def test_the_oracle_predicts_better_than_the_baseline(self, transactions, rows, fraud, oracle):
        later = np.arange(len(transactions) - 4_000, len(transactions))
        given = contexts(transactions.take(later), fraud.scores(rows[later]), seed=9)
        world = Payments()
        mask = given.eligible()
        best = np.where(mask, oracle.predict(context_rows(given)), -1).argmax(axis=1)
        truth = world.probability(given)[np.arange(len(given)), best].mean()
        baseline = log_baseline(world, given, seed=9).authorised.mean()
        assert truth > baseline + 0.03

    def test_the_oracle_scores_every_action_of_every_context(self, logged, oracle):
        context = context_rows(logged.contexts)[:7]
        predicted = oracle.predict(context)
        assert predicted.shape == (7, 132)
        one = np.concatenate([context[3], oracle.task.action_rows()[50]])[None, :]
        alone = oracle.booster.predict(oracle.task.matrix(one.astype(np.float32)))
        assert predicted[3, 50] == alone[0]

    def test_choices_with_equal_outcomes_are_refused(self, logged):
        result = choices(logged)
        same = LoggedChoices(result.context, result.action, np.ones_like(result.reward))
        with pytest.raises(DataError, match="all ended alike"):
            train_oracle(authorise_task(), same, "sha256:0", OraclePlan(trees=1))

    def test_the_bundle_chooses_by_its_policy(self, tmp_path, logged, oracle):
        built = build_oracle(oracle, near_greedy(0.05, "salt"), tmp_path / "action", "run-1")
        bundle = Bundle.load(built.path, built.digest)
        given = logged.contexts.take(slice(0, 50))
        context, mask = context_rows(given), given.eligible()
        pmf, rewards = bundle.evaluate(context, eligible=mask)
        predicted = oracle.predict(context)
        np.testing.assert_allclose(rewards[mask], predicted[mask], rtol=1e-6)
        assert (pmf[~mask] == 0).all()
        count = mask.sum(axis=1)
        best = np.where(mask, predicted, -1).argmax(axis=1)
        floor = 0.05 / count
        assert (pmf[mask] >= np.repeat(floor, count) * (1 - 1e-9)).all()
        unique = (np.where(mask, rewards, -1) == rewards[np.arange(50), best][:, None]).sum(axis=1) == 1
        np.testing.assert_allclose(pmf[np.arange(50), best][unique], (0.95 + floor)[unique])

    def test_two_policies_draw_by_different_keys(self):
        assert near_greedy(0.05, "a").salt != near_greedy(0.05, "b").salt
        assert near_greedy(0.05, "a") == near_greedy(0.05, "a")


def test_named_rows_give_the_same_result_as_dense_rows(logged):
    dense = context_rows(logged.contexts)[0]
    named = named_row(CONTEXT, dense)
    assert set(named) == {column.name for column in CONTEXT}
    assert isinstance(named["issuer"], str)
    assert isinstance(named["has_token"], bool)
    assert named["amount"] == float(dense[0])


def test_the_lowest_bit_of_a_mask_is_the_first_action():
    mask = np.zeros(132, dtype=bool)
    mask[[0, 9, 131]] = True
    packed = mask_bytes(mask)
    assert len(packed) == 17
    assert packed[0] == 1
    assert packed[1] == 2
    assert packed[16] == 8


def vars_of(value):
    return {
        name: getattr(value, name)
        for name in ("ids", "time_ms", "customer", "terminal", "amount", "fraud", "scenario")
    }
