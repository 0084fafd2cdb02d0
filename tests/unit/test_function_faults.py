"""Tests of functions without a result: in backtests of the platform, for clients and in what people see."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import known_payments
import numpy as np
import pytest
from bundles import FEATURES, rows
from faulting import CHECKOUT, FUNCTIONS, IN_RULE, IN_STEP, STEPS, faulted, faulting_score_bundle
from logs import write_segment

from scorer.bundle import Bundle, Feature, SchemaFile, transform
from scorer.bundle.rules import BundleRules, CompiledRules
from scorer.client.errors import ServerFaultError
from scorer.client.replies import read_batch
from scorer.log import BundleShelf, export, verify
from scorer.release.authoring.blast import blast_radius
from scorer.release.backtest import judge
from scorer.release.decisions.sampling import SampledDecision
from scorer.release.decisions.shapes import decision_shape
from scorer.v1 import scoring_pb2 as pb
from scorer.v1.log_pb2 import DecisionRecord, LogRecord

COUNT = 400
DATA = rows(COUNT, seed=41)
HOURS = DATA[:, 1]
NOON = int(datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp() * 1e6)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bundles") / "score"
    faulting_score_bundle(directory)
    return directory


@pytest.fixture(scope="module")
def bundle(path: Path) -> Bundle:
    return Bundle.load(path)


def records(bundle: Bundle) -> list[DecisionRecord]:
    """Return the decisions of a server on the data, with the faults that the modules have by their source."""
    scores, rules = bundle.score(DATA), bundle.rules
    assert rules is not None
    ids = [f"d{at}" for at in range(COUNT)]
    found = rules.evaluate(DATA, scores=scores.scores, seconds=[NOON // 1_000_000] * COUNT, ids=ids)
    return [
        DecisionRecord(
            decision_id=ids[at],
            checkpoint="fraud.checkout",
            bundle=bytes.fromhex(bundle.digest.removeprefix("sha256:")),
            schema_fingerprint=bundle.schema_fingerprint,
            decided_at_us=NOON,
            features=DATA[at],
            margin=scores.margins[at],
            score=scores.scores[at],
            decision=bundle.labels[int(found.bands[at])],
            rules=pb.AppliedRules(
                fired=[pb.FiredRule(id=rules.rules[number].id) for number in found.applied[at]],
                score=found.scores[at],
                errors=found.errors[at],
            ),
            faulted_functions=faulted(HOURS[at]),
        )
        for at in range(COUNT)
    ]


def compiled(bundle: Bundle, text: str) -> CompiledRules:
    rules = bundle.check_rules(BundleRules(text))
    assert isinstance(rules, CompiledRules), rules
    return rules


def written(directory: Path, decisions: list[DecisionRecord]) -> Path:
    write_segment(directory, 1, 1, [LogRecord(decision=one).SerializeToString() for one in decisions])
    return directory


def test_a_fault_of_a_step_is_a_missing_value_of_training_rows() -> None:
    found = transform([Feature(name=name) for name in FEATURES], STEPS, DATA, functions=FUNCTIONS)
    np.testing.assert_array_equal(found[:, -1], np.where(np.isin(HOURS, IN_STEP), np.nan, HOURS))


def test_scores_and_rules_name_the_functions_without_a_result(bundle: Bundle) -> None:
    out = bundle.score(DATA)
    together, _ = bundle.score_columns(np.ascontiguousarray(DATA.T))
    np.testing.assert_array_equal(out.faulted, together.faulted)
    assert bundle.rules is not None
    ruled = bundle.rules.evaluate(DATA, scores=out.scores, seconds=[0] * COUNT, ids=[""] * COUNT)
    for at, hour in enumerate(HOURS):
        assert bundle.faulted_functions(out.faulted[at]) == [one for one in faulted(hour) if one == "step"]
        assert bundle.faulted_functions(int(out.faulted[at]) | ruled.faulted[at]) == faulted(hour)
    assert ruled.errors == np.isin(HOURS, IN_RULE).astype(int).tolist()


def test_a_blast_radius_has_the_faults_of_a_server(bundle: Bundle) -> None:
    schema = SchemaFile(features=[Feature(name=name) for name in FEATURES])
    sample = [SampledDecision(one, schema, {}) for one in records(bundle)]
    assert bundle.rules is not None
    after = compiled(bundle, CHECKOUT.replace("20.0", "12.0"))
    found = blast_radius(
        bundle, schema.features, bundle.rules, after, sample, amount="amount", outcome="fraud"
    )
    assert found.decisions == COUNT
    assert found.errors == int(np.isin(HOURS, IN_RULE).sum()) > 0
    (rule,) = found.rules
    assert (rule.before, rule.after) == (int((HOURS >= 20).sum()), int((HOURS >= 12).sum()))


def test_a_verification_repeats_the_functions_without_a_result(
    bundle: Bundle, path: Path, tmp_path: Path
) -> None:
    decisions = records(bundle)
    shelf = BundleShelf([path])
    report = verify(written(tmp_path / "log", decisions), shelf)
    assert report.ok and report.verified == COUNT, report.mismatches
    first = next(one for one in decisions if one.faulted_functions == ["step"])
    for names in ([], ["condition"], ["step", "condition"]):
        del first.faulted_functions[:]
        first.faulted_functions.extend(names)
        report = verify(written(tmp_path / f"log-{len(names)}{names[:1]}", decisions), shelf)
        (found,) = report.mismatches
        assert (found.decision_id, found.field) == (first.decision_id, "faulted_functions")
        assert (found.logged, found.computed) == (str(names), "['step']")
        assert report.verified == COUNT - 1


def test_an_export_and_the_platform_show_the_functions_without_a_result(
    bundle: Bundle, tmp_path: Path
) -> None:
    from pyarrow import parquet

    decisions = records(bundle)
    export(written(tmp_path / "log", decisions), tmp_path / "decisions.parquet")
    column = parquet.read_table(tmp_path / "decisions.parquet")["faulted_functions"]
    assert column.to_pylist() == [faulted(hour) for hour in HOURS]
    for one in decisions[:50]:
        assert decision_shape(one, "server")["faulted_functions"] == list(one.faulted_functions)


def test_clients_decode_the_rows_with_faults() -> None:
    served = pb.Served(faulted_functions=["step", "condition"])
    row = pb.FaultedRow(row=1, functions=[1])
    columns: dict[str, Any] = {"scores": [0.5] * 2, "margins": [0.0] * 2, "decisions": [0] * 2}
    reply = pb.ScoreBatchResponse(**columns, labels=["approve"], served=served, faulted_rows=[row])
    found = read_batch(reply.SerializeToString(), "r", 2)
    assert (found.served.faulted_functions, found.faulted_rows) == (
        ("step", "condition"),
        {1: ("condition",)},
    )
    for wrong in (pb.FaultedRow(row=2, functions=[0]), pb.FaultedRow(row=0, functions=[2])):
        reply.faulted_rows[0].CopyFrom(wrong)
        with pytest.raises(ServerFaultError, match="functions without a result"):
            read_batch(reply.SerializeToString(), "r", 2)


def test_a_backtest_of_the_platform_has_the_faults_of_a_server(path: Path, tmp_path: Path) -> None:
    live = known_payments.build(tmp_path / "live")
    log = known_payments.known_log(tmp_path / "log", live)
    report = judge.run(known_payments.backtest_job(log, live, path), lambda _: None).rules
    assert report is not None
    hours = known_payments.DATA[:, 1]
    assert report["decisions"] == known_payments.COUNT
    assert report["errors"] == int(np.isin(hours, IN_RULE).sum()) > 0
    assert report["hits"]["late"] == int((hours >= 20).sum())
    candidate = Bundle.load(path)
    missing = transform(
        [Feature(name=name) for name in FEATURES], STEPS, known_payments.DATA, functions=FUNCTIONS
    )[:, -1]
    np.testing.assert_array_equal(np.isnan(missing), candidate.score(known_payments.DATA).faulted > 0)
