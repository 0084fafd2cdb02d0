"""Tests of log records as rows: features by name across bundles, actions by their pmfs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bundles import ACTIONS
from bundles import rows as contexts
from hypothesis import given
from hypothesis import strategies as st

from scorer.bundle import Bundle, Feature
from scorer.bundle.models import ReferenceFile
from scorer.errors import BundleError
from scorer.ids import decision_key
from scorer.release.readout import recompute, rows
from scorer.release.readout.schemas import Comparison, Schemas
from scorer.v1.log_pb2 import DecisionRecord, ObservationRecord

AMOUNT = Feature(name="amount")
COUNTRY = Feature(name="country", type="category", categories=["DE", "FR", "NL"])
REORDERED = Feature(name="country", type="category", categories=["NL", "DE"])
FLAG = Feature(name="is_new", type="flag")
NAN = float("nan")


def row(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_features_are_compared_by_name_and_not_by_position() -> None:
    comparison = Comparison([AMOUNT, COUNTRY, FLAG], [FLAG, Feature(name="fresh"), AMOUNT])
    assert comparison.different(row(10, 1, 0), row(0, 7, 10)) == []
    assert comparison.different(row(10, 1, 0), row(1, 7, 11)) == [0, 2]
    assert comparison.different(row(NAN, 1, NAN), row(NAN, 7, NAN)) == []
    assert comparison.different(row(NAN, 1, 0), row(0, 7, 10)) == [2]
    assert comparison.told([0, 1, 2], row(10, 1, 0), row(1, 7, NAN)) == [
        ("is_new", False, True),
        ("fresh", None, 7.0),
        ("amount", 10.0, None),
    ]


def test_categories_are_compared_by_their_names() -> None:
    comparison = Comparison([COUNTRY], [REORDERED])
    germany, netherlands = comparison.different(row(0), row(1)), comparison.different(row(2), row(0))
    assert (germany, netherlands) == ([], [])
    assert comparison.different(row(2), row(1)) == [0]
    # A name that this bundle does not have counts as missing.
    assert comparison.different(row(1), row(NAN)) == []
    assert comparison.different(row(NAN), row(NAN)) == []


def test_features_that_the_record_lacks_are_listed() -> None:
    comparison = Comparison([AMOUNT, COUNTRY], [COUNTRY, AMOUNT, FLAG])
    assert comparison.lacking([0, 1, 2], row(NAN, 1)) == [0, 2]


def test_a_missing_bundle_is_not_compared() -> None:
    def gone(digest: str) -> Path:
        raise BundleError(f"{digest} is not in the registry; push it again")

    schemas = Schemas(gone)
    assert schemas.comparison("sha256:a", "sha256:b") is None
    assert schemas.actions("sha256:a") == ()


@given(st.text(min_size=1, max_size=64))
def test_keys_have_64_bits_and_are_stable(decision: str) -> None:
    assert 0 <= decision_key(decision) < 2**64
    assert decision_key(decision) == decision_key(decision)


def test_keys_equal_those_of_old_parts() -> None:
    assert decision_key("payment-000001") == 0xFD234F24E78093CF  # b2sum -l 64, little-endian


def test_only_the_newest_answers_are_kept() -> None:
    remembered = rows.RecentDecisions(3)
    for number in range(5):
        remembered.add(DecisionRecord(decision_id=f"d{number}", checkpoint="c"))
    assert remembered.of("c", "d1") is None
    assert remembered.of("c", "d2") is not None
    assert remembered.of("other", "d2") is None


def test_the_kept_answers_are_bounded_in_bytes() -> None:
    remembered = rows.RecentDecisions(most_bytes=100_000)
    large = [0.5] * 1_000  # the probabilities have 8,000 bytes
    for number in range(50):
        remembered.add(DecisionRecord(decision_id=f"d{number}", checkpoint="c", pmf=large))
        remembered.add(DecisionRecord(decision_id=f"d{number}", checkpoint="c", pmf=large))
    known = [number for number in range(50) if remembered.of("c", f"d{number}") is not None]
    assert known == list(range(38, 50))
    last = remembered.of("c", "d49")
    assert last is not None and last[2].tolist() == large


@pytest.fixture(scope="module")
def bundles(built_bundles: dict[str, Path]) -> dict[str, Path]:
    return {Bundle.load(built_bundles[name]).digest: built_bundles[name] for name in ("action-1", "action-2")}


def decided(bundle: Bundle, decision: str, features: np.ndarray, eligible: np.ndarray) -> DecisionRecord:
    chosen = bundle.select(features, checkpoint="action.authorise", decision_id=decision, eligible=eligible)
    return DecisionRecord(
        decision_id=decision,
        checkpoint="action.authorise",
        bundle=bytes.fromhex(bundle.digest.removeprefix("sha256:")),
        decided_at_us=1_000,
        features=features.tolist(),
        eligible_mask=np.packbits(eligible, bitorder="little").tobytes(),
        pmf=chosen.pmf.tolist(),
        action=chosen.action,
        action_index=chosen.index,
        propensity=chosen.propensity,
        expected_reward=chosen.expected_reward,
    )


def test_actions_are_compared_by_their_pmfs(bundles: dict[str, Path]) -> None:
    live, own = (Bundle.load(path) for path in bundles.values())
    schemas, remembered = Schemas(bundles.__getitem__), rows.RecentDecisions()
    random = np.random.default_rng(4)
    kept = []
    for number, features in enumerate(contexts(60, seed=3)):
        eligible = random.random(len(ACTIONS)) < 0.7
        eligible[number % len(ACTIONS)] = True
        answer = decided(live, f"d{number}", features, eligible)
        seen = decided(own, f"d{number}", features, eligible)
        remembered.add(answer)
        record = ObservationRecord(
            decision=seen,
            live_bundle=answer.bundle,
            live_action=answer.action,
            live_propensity=answer.propensity,
            live_expected_reward=answer.expected_reward,
        )
        row = rows.observation_row(number, record, remembered, schemas)
        p, q = np.array(answer.pmf), np.array(seen.pmf)
        assert row["distance"] == pytest.approx(np.abs(p - q).sum() / 2)
        assert row["least"] == pytest.approx(q[eligible].min())
        assert row["ratio"] == pytest.approx(q[answer.action_index] / p[answer.action_index])
        assert row["top"] == ACTIONS[int(q.argmax())]
        assert row["live_top"] == ACTIONS[int(p.argmax())]
        assert (row["label"], row["live_label"]) == (seen.action, answer.action)
        assert (row["score"], row["live_score"]) == (seen.expected_reward, answer.expected_reward)
        assert row["differs"] == 0
        kept.append(row)
    # The recomputed values equal the recorded ones.
    assert recompute.parity(own, kept) == (60, 0.0)
    kept[7]["propensity"] += 1e-3
    assert recompute.parity(own, kept) == (60, pytest.approx(1e-3))
    kept[7]["label"] = "no such action"
    assert recompute.parity(own, kept) == (60, float("inf"))


def test_an_observation_without_its_answer_is_not_compared(bundles: dict[str, Path]) -> None:
    own = Bundle.load(next(iter(bundles.values())))
    seen = decided(own, "d", contexts(1)[0], np.ones(len(ACTIONS), dtype=bool))
    record = ObservationRecord(decision=seen, live_action=ACTIONS[0], live_propensity=0.5)
    row = rows.observation_row(1, record, rows.RecentDecisions(), Schemas(bundles.__getitem__))
    assert row["differs"] == -1
    assert "distance" not in row
    assert row["ratio"] == pytest.approx(seen.pmf[0] / 0.5)


def test_an_error_has_no_score(bundles: dict[str, Path]) -> None:
    seen = DecisionRecord(decision_id="d", score=0.5)
    row = rows.observation_row(
        1,
        ObservationRecord(decision=seen, error="panic"),
        rows.RecentDecisions(),
        Schemas(bundles.__getitem__),
    )
    assert np.isnan(row["score"])
    assert row["error"] == "panic"


def test_recomputing_no_rows_gives_no_result(built_bundles: dict[str, Path]) -> None:
    bundle = Bundle.load(built_bundles["score-1"])
    assert recompute.parity(bundle, []) is None
    narrow = {"features": row(1, 2).tobytes(), "score": 0.5}
    assert recompute.parity(bundle, [narrow]) == (1, float("inf"))
    assert ReferenceFile.model_validate_json((built_bundles["score-1"] / "reference.json").read_bytes())
