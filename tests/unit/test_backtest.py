"""Tests of a backtest with real bundles and a log of payments with known outcomes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import FEATURES, rows, tiny_action_bundle
from known_payments import (
    BEGIN,
    CHECKPOINT,
    COUNT,
    DATA,
    FRAUD,
    backtest_job,
    build,
    decisions,
    known_log,
    outcome,
)
from logs import write_segment
from waiting import wait_until

from scorer.bundle import Bundle, Feature
from scorer.release.backtest import child, job, judge
from scorer.release.backtest.job import BacktestProgress, Job, Result
from scorer.release.backtest.layout import Layout
from scorer.release.backtest.rows import Evaluator, Reading, scores
from scorer.release.backtest.running import Backtests
from scorer.release.model import Outcome
from scorer.stats.blocks import DAY_US
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, WithdrawnRecord


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    at = tmp_path_factory.mktemp("bundles")
    random = np.random.default_rng(9)
    return {
        "live": build(at / "live"),
        "equal": build(at / "equal", seed=2),
        "permuted": build(at / "permuted", labels=random.permutation),
        "turned": build(at / "turned", names=FEATURES[::-1]),
        "new": build(at / "new", names=(*FEATURES, "velocity")),
    }


@pytest.fixture(scope="module")
def log(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return known_log(tmp_path_factory.mktemp("logs") / "log", bundles["live"])


def run(wanted: Job) -> Result:
    return judge.run(wanted, lambda _: None)


def read(wanted: Job) -> Any:
    return Reading(wanted, Evaluator(wanted), scores, lambda _: None).read()


def gates(result: Result) -> dict[str, Outcome]:
    return {gate.metric: gate.outcome for gate in result.gates if not gate.dry_run}


def test_a_model_of_permuted_labels_fails_and_its_missed_frauds_are_listed(
    log: Path, bundles: dict[str, Path]
) -> None:
    result = run(backtest_job(log, bundles["live"], bundles["permuted"]))
    assert result.outcome is Outcome.FAIL
    assert gates(result)["backtest_recall_review"] is Outcome.FAIL
    assert gates(result)["backtest_auc"] is Outcome.FAIL
    assert (result.rows, result.positives) == (COUNT, int(FRAUD.sum()))
    assert result.metrics["recall_review"]["live"] > 2 * result.metrics["recall_review"]["candidate"]
    live, own = (Bundle.load(bundles[name]).score(DATA) for name in ("live", "permuted"))
    assert result.missed
    for one in result.missed:
        number = int(one["decision_id"].removeprefix("payment-"))
        assert FRAUD[number] and live.bands[number] >= 1
        # The scores have the same bits as those of the bundle.
        assert (one["live_score"], one["score"]) == (live.scores[number], own.scores[number])
        assert one["amount"] == pytest.approx(float(DATA[number, 0]))


def test_an_equally_good_bundle_does_not_fail_and_the_live_bundle_passes(
    log: Path, bundles: dict[str, Path]
) -> None:
    assert Outcome.FAIL not in gates(run(backtest_job(log, bundles["live"], bundles["equal"]))).values()
    same = run(backtest_job(log, bundles["live"], bundles["live"]))
    assert same.outcome is Outcome.PASS, same.words
    assert {one["difference"] for name, one in same.metrics.items() if name != "calibration"} == {0.0}
    assert not same.missed


def test_features_are_matched_by_name(log: Path, bundles: dict[str, Path]) -> None:
    result = read(backtest_job(log, bundles["live"], bundles["turned"]))
    expected = Bundle.load(bundles["turned"]).score(DATA[:, ::-1])
    order = np.argsort(result.rows.at)
    assert np.array_equal(result.rows.values["candidate"][order], expected.scores)


def test_a_feature_that_the_log_lacks_is_reported_and_gives_no_verdict(
    log: Path, bundles: dict[str, Path]
) -> None:
    result = run(backtest_job(log, bundles["live"], bundles["new"]))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "velocity" in result.words
    assert {gate.value for gate in result.gates} == {None}


def test_few_labels_are_reported_and_give_no_verdict(log: Path, bundles: dict[str, Path]) -> None:
    result = run(backtest_job(log, bundles["live"], bundles["permuted"], end=BEGIN + DAY_US // 2))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "30 of each class are needed" in result.words


def test_rows_are_bounded_and_the_note_names_those_that_are_used(log: Path, bundles: dict[str, Path]) -> None:
    result = read(backtest_job(log, bundles["live"], bundles["equal"], most=5_000))
    assert 2_000 < len(result.rows) <= 5_000
    assert result.notes == ["One in 4 decisions of the window is used."]
    # Outcomes are sampled together with their decisions.
    of = [int(one.removeprefix("payment-")) for one in result.rows.id.texts()]
    assert np.array_equal(result.outcome > 0.5, FRAUD[of])


def test_outcomes_count_by_proof_and_revision_and_declined_payments_without_one_are_excluded(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    stopped = Bundle.load(bundles["live"]).score(DATA).bands > 0
    first, second, third = (int(one) for one in np.flatnonzero(~stopped)[:3])
    held = [int(one) for one in np.flatnonzero(stopped)]
    records = [
        *decisions(bundles["live"]),
        outcome(first, 1.0, revision=1),
        outcome(first, 0.0, revision=2),
        outcome(second, 1.0, proof=1),
        outcome(held[0], 1.0),
        outcome(third, 1.0),
    ]
    records.append(
        LogRecord(withdrawn=WithdrawnRecord(sequence=len(records), checkpoint=CHECKPOINT)).SerializeToString()
    )
    write_segment(tmp_path / "log", 1, 1, records)
    result = read(backtest_job(tmp_path / "log", bundles["live"], bundles["equal"]))
    known = dict(zip(result.rows.id.texts(), result.outcome.tolist(), strict=True))
    assert (known[f"payment-{first}"], known[f"payment-{second}"], known[f"payment-{third}"]) == (0, 0, 0)
    assert known[f"payment-{held[0]}"] == 1
    assert not {f"payment-{number}" for number in held[1:]} & set(known)
    reasons = {"stopped by a review or a decline, and without an outcome": len(held) - 1}
    assert result.left_out == reasons | {"outcomes that nothing proves": 1}


def test_a_retry_in_another_log_is_counted_once(log: Path, bundles: dict[str, Path], tmp_path: Path) -> None:
    write_segment(tmp_path / "other", 1, 1, decisions(bundles["live"])[:100])
    both = {"live-1": str(log), "live-2": str(tmp_path / "other")}
    assert len(read(backtest_job(log, bundles["live"], bundles["equal"], logs=both)).rows) == COUNT


def test_categories_are_matched_by_their_names() -> None:
    logged = [Feature(name="country", type="category", categories=["DE", "FR", "US"])]
    wanted = [Feature(name="country", type="category", categories=["US", "DE"]), Feature(name="more")]
    layout = Layout(logged, wanted)
    out = layout(np.array([[0], [1], [2], [np.nan]], dtype=np.float32))
    assert layout.lacking == ["more"]
    assert np.array_equal(out[:, 0], np.array([1, np.nan, 0, np.nan], np.float32), equal_nan=True)
    assert np.isnan(out[:, 1]).all()


def test_actions_are_compared_by_reward_and_effective_rows(tmp_path: Path) -> None:
    live = tmp_path / "live"
    tiny_action_bundle(live)
    tiny_action_bundle(
        tmp_path / "worst",
        policy={"rule": "epsilon_greedy", "epsilon": 0.9, "floor": 0.1, "salt": "00" * 16},
    )
    bundle, data = Bundle.load(live), rows(4_000, seed=3)
    pmf, reward = bundle.evaluate(data)
    random = np.random.default_rng(1)
    drawn = (random.random((len(data), 1)) > np.cumsum(pmf, axis=1)).sum(axis=1).clip(0, pmf.shape[1] - 1)
    at = np.arange(len(data))
    paid = random.random(len(data)) < reward[at, drawn]
    records = []
    for number in at.tolist():
        record = DecisionRecord(
            decision_id=f"payment-{number}",
            checkpoint=CHECKPOINT,
            schema_fingerprint=bundle.schema_fingerprint,
            decided_at_us=BEGIN + number * DAY_US // 200,
            features=data[number].tolist(),
            pmf=pmf[number].tolist(),
            action_index=int(drawn[number]),
            action=bundle.actions[drawn[number]],
            propensity=float(pmf[number, drawn[number]]),
        )
        records.append(LogRecord(decision=record).SerializeToString())
    records += [outcome(number, float(paid[number])) for number in at.tolist()]
    write_segment(tmp_path / "log", 1, 1, records)
    same = run(backtest_job(tmp_path / "log", live, live))
    assert same.outcome is Outcome.PASS, same.words
    assert same.metrics["reward"]["difference"] == 0.0
    assert same.metrics["effective_rows"]["candidate"] == pytest.approx(len(data), rel=1e-9)
    other = run(backtest_job(tmp_path / "log", live, tmp_path / "worst"))
    own = Bundle.load(tmp_path / "worst").evaluate(data)[0]
    truth = float(((own - pmf) * reward).sum(axis=1).mean())
    result = other.metrics["reward"]
    assert abs(result["difference"] - truth) < result["high"] - result["low"]
    assert truth < 0
    assert other.metrics["effective_rows"]["candidate"] < len(data)


# --- the process ---


def test_a_stored_result_is_read_unchanged(log: Path, bundles: dict[str, Path], tmp_path: Path) -> None:
    wanted = backtest_job(log, bundles["live"], bundles["permuted"])
    job.write_job(tmp_path / "one", wanted)
    assert job.read_job(tmp_path / "one") == wanted
    assert child.main([str(tmp_path / "one")]) == 0
    again = job.read_result(tmp_path / "one")
    assert again is not None
    assert job.as_document(again) == job.as_document(job.from_document(job.as_document(again)))
    assert again.outcome is Outcome.FAIL
    assert job.read_progress(tmp_path / "one").rows > 0
    assert job.read_progress(tmp_path / "none") == BacktestProgress()


def test_a_backtest_runs_in_a_process_that_ends_with_its_change_request(
    log: Path, bundles: dict[str, Path], tmp_path: Path
) -> None:
    backtests = Backtests(tmp_path / "backtests")
    wanted = backtest_job(log, bundles["live"], bundles["equal"])
    assert backtests.look("cr-1") is None
    backtests.start("cr-1", wanted)
    assert backtests.is_full
    wait_until(
        lambda: (result := backtests.look("cr-1")) is not None and result.result is not None, seconds=120
    )
    assert not backtests.is_full
    # Another process of the platform reads the result.
    result = Backtests(tmp_path / "backtests").look("cr-1")
    assert result is not None and result.result is not None
    backtests.start("cr-2", replace(wanted, live=str(tmp_path / "none")))
    wait_until(lambda: (result := backtests.look("cr-2")) is not None and bool(result.error), seconds=120)
    backtests.start("cr-3", wanted)
    process = backtests._running["cr-3"]
    backtests.keep({"cr-4"})
    assert process.poll() is not None
    assert backtests.look("cr-3") is None
