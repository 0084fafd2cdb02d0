"""Tests of which outcomes and records of a decision the join uses: proof, delivery, retries and replicas."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from joining import POINT, SETTINGS, Maker, counts, delivery, known, outcome, run
from logs import write_segment

from scorer.learn.experience_files import read, write
from scorer.learn.join.cache import CURSOR
from scorer.log import BundleShelf
from scorer.log.proof import KNOWN, UNPROVEN
from scorer.v1.scoring_pb2 import OutcomeSource


@pytest.fixture(scope="module")
def make(built_bundles: dict[str, Path]) -> Maker:
    return Maker(built_bundles["action-1"])


@pytest.fixture(scope="module")
def shelf(built_bundles: dict[str, Path]) -> BundleShelf:
    return BundleShelf([built_bundles["action-1"]])


INCLUDE = SETTINGS.model_copy(update={"unproven": "include"})


def test_an_unproven_outcome_counts_only_if_it_is_configured_and_never_before_a_proven_one(
    tmp_path, make, shelf
):
    log = tmp_path / "log"
    records = [
        *(make.decision(name, 0) for name in ("proven", "known", "forged", "both", "old")),
        outcome("proven", 1, 1.0, **make.token("proven", 0)),
        outcome("known", 1, 1.0, proof=KNOWN),
        outcome("forged", 1, 1.0, proof=UNPROVEN),
        outcome("both", 1, 0.0, revision=1000, proof=UNPROVEN),
        outcome("both", 2, 1.0, **make.token("both", 0)),
        # A record of a version that required no proof.
        outcome("old", 1, 1.0),
    ]
    write_segment(log, 1, 1, records)
    settled = dict.fromkeys(("proven", "known", "both", "old"), ("SETTLED", 1.0))
    joined = run(log, shelf, 48)
    assert known(joined) == {**settled, "forged": ("MISSING", None)}
    assert counts(joined)["unproven outcome"] == 2
    joined = run(log, shelf, 48, INCLUDE)
    assert known(joined) == {**settled, "forged": ("SETTLED", 1.0)}
    assert "unproven outcome" not in counts(joined)


@pytest.mark.fault_case(80)
@pytest.mark.fault_case(6)
def test_an_undelivered_decision_is_excluded_unless_its_token_is_returned(tmp_path, make, shelf):
    log = tmp_path / "log"
    records = [
        *(make.decision(name, 0) for name in ("kept", "gone", "rewarded", "retried", "returned")),
        *(delivery(name, 0) for name in ("gone", "rewarded", "retried", "returned")),
        delivery("retried", 0, delivered=True),
        # The mark concerns one record only: the decision of another hour was delivered.
        delivery("kept", 5),
        # An outcome without proof of delivery is excluded together with its decision.
        outcome("rewarded", 1, 1.0, proof=KNOWN),
        outcome("returned", 1, 1.0, **make.token("returned", 0)),
    ]
    write_segment(log, 1, 1, records)
    joined = run(log, shelf, 48)
    missing = ("MISSING", None)
    assert known(joined) == {"kept": missing, "retried": missing, "returned": ("SETTLED", 1.0)}
    assert counts(joined)["undelivered decision"] == 2


@pytest.mark.fault_case(80)
def test_a_fallback_with_an_outcome_is_excluded(tmp_path, make, shelf):
    log = tmp_path / "log"
    pmf = [1.0] + [0.0] * (len(make.actions) - 1)
    fallback = {"fallback_source": "static", "fallback_reason": "late", "pmf": pmf, "propensity": 1.0}
    token = make.token("static", 0, propensity=1.0, fallback=True)
    write_segment(
        log,
        1,
        1,
        [make.decision("model", 0), make.decision("static", 0, **fallback), outcome("static", 1, **token)],
    )
    joined = run(log, shelf, 48)
    assert set(known(joined)) == {"model"}
    assert counts(joined)["fallback answer"] == 1


@pytest.mark.fault_case(16)
def test_the_record_that_the_token_identifies_counts(tmp_path, make, shelf):
    log = tmp_path / "log"
    records = [
        # The server restarted with another policy in between. The caller received the second answer.
        make.decision("swapped", 0, 2),
        make.decision("swapped", 1, 4),
        outcome("swapped", 2, **make.token("swapped", 1, taken=4)),
        # The first reply was lost, and the retry got the same decision.
        make.decision("lost", 0, 3),
        delivery("lost", 0),
        make.decision("lost", 1, 3),
    ]
    write_segment(log, 1, 1, records)
    joined = run(log, shelf, 100)
    e = joined.experience
    taken = dict(zip(e.decision_id.tolist(), e.action.tolist(), strict=True))
    assert taken == {"swapped": 4, "lost": 3}
    assert known(joined)["swapped"] == ("SETTLED", 1.0)
    result = counts(joined)
    assert (result["repeated with another answer"], result["repeated decision"]) == (1, 1)


def test_the_token_rebuilds_a_propensity_that_the_record_lacks(tmp_path, make, shelf):
    log = tmp_path / "log"
    records = [
        make.decision("bare", 0, propensity=0.0),
        outcome("bare", 1, **make.token("bare", 0)),
        make.decision("wrong", 0, propensity=0.25),
        outcome("wrong", 1, **make.token("wrong", 0)),
        # The token does not match the pmf either.
        make.decision("odd", 0, propensity=0.0),
        outcome("odd", 1, **make.token("odd", 0, propensity=0.4)),
        make.decision("unnamed", 0, propensity=0.0),
    ]
    write_segment(log, 1, 1, records)
    joined = run(log, shelf, 48)
    e = joined.experience
    propensity = dict(zip(e.decision_id.tolist(), e.propensity.tolist(), strict=True))
    expected = 1 - 0.1 * (len(make.actions) - 1)
    assert propensity == {"bare": pytest.approx(expected), "wrong": pytest.approx(expected)}
    result = counts(joined)
    assert result["propensity from the token"] == 2
    assert (result["token of another answer"], result["no propensity"]) == (1, 1)


@pytest.mark.fault_case(18)
@pytest.mark.fault_case(77)
def test_the_logs_of_two_replicas_are_joined_as_one(tmp_path, make, shelf):
    """Hedged pairs, retries and outcomes at the other replica: each decision counts once."""
    first, second = tmp_path / "first", tmp_path / "second"
    token = make.token("moved", 0)
    write_segment(
        first,
        1,
        1,
        [
            make.decision("moved", 0),
            make.decision("hedged", 0, 2),
            make.decision("differs", 0, 3),
            outcome("remote", 3, **make.token("remote", 0, taken=1)),
            outcome("moved", 5, 1.0, **token),
        ],
    )
    write_segment(
        second,
        1,
        1,
        [
            make.decision("remote", 0, 1),
            make.decision("hedged", 0.001, 2),
            # This replica had another bundle's answer; the caller used the first one's.
            make.decision("differs", 0.001, 4),
            delivery("differs", 0.001),
            # The same report at both replicas, and a revision at the other one.
            outcome("moved", 4, 1.0, **token),
            outcome("moved", 6, 0.0, revision=1, **token),
        ],
    )
    joined = run([first, second], shelf, 100)
    e = joined.experience
    assert dict(zip(e.decision_id.tolist(), e.action.tolist(), strict=True)) == {
        "moved": 0,
        "hedged": 2,
        "differs": 3,
        "remote": 1,
    }
    assert known(joined)["moved"] == ("SETTLED", 0.0)
    assert known(joined)["remote"] == ("SETTLED", 1.0)
    found = counts(joined)
    assert found["repeated decision"] == found["repeated with another answer"] == 1
    assert found["duplicate outcome"] == found["revised outcome"] == 1
    # The order of the logs does not matter.
    other = run([second, first], shelf, 100)
    assert (known(other), counts(other)) == (known(joined), found)
    # Of one log alone, the outcome that came in here for the other replica's decision is named as such.
    assert counts(run(first, shelf, 100))["outcome of an absent decision"] == 1


def test_a_cache_of_an_older_format_is_read_again_from_the_log(tmp_path, make, shelf):
    log, cache = tmp_path / "log", tmp_path / "cache"
    write_segment(log, 1, 1, [make.decision("a", 0), outcome("a", 1, proof=UNPROVEN)])
    more: dict[str, Any] = {"checkpoint": "action.authorise", "cache": cache}
    whole = run(log, shelf, 48, **more)
    [cursor] = cache.glob(f"*/{CURSOR}")
    stored = cursor.read_text()
    cursor.write_text(re.sub(r'"format": \d+', '"format": 1', stored))
    assert cursor.read_text() != stored
    assert known(run(log, shelf, 48, **more)) == known(whole) == {"a": ("MISSING", None)}
    assert math.isnan(whole.experience.reward[0])


def test_the_source_of_the_outcome_that_counts_is_known(tmp_path, make, shelf):
    log = tmp_path / "log"
    reviewer, merchant = OutcomeSource(kind=1, id="case-7"), OutcomeSource(kind=2)
    records = [
        *(make.decision(name, 0) for name in ("revised", "repeated", "old", "newer", "waiting")),
        outcome("revised", 1, 0.0, proof=KNOWN, source=merchant),
        outcome("revised", 2, 1.0, revision=1, proof=KNOWN, source=reviewer),
        outcome("repeated", 1, 1.0, proof=KNOWN, source=reviewer),
        outcome("repeated", 2, 1.0, proof=KNOWN, source=merchant),
        # Records of a version without sources, and of a version with more kinds of them.
        outcome("old", 1, 1.0),
        outcome("newer", 1, 1.0, proof=KNOWN, source=OutcomeSource(kind=99)),
    ]
    write_segment(log, 1, 1, records)
    joined = run(log, shelf, 48)
    experience = joined.experience
    sources = dict(zip(experience.decision_id.tolist(), experience.source.tolist(), strict=True))
    assert sources == {"revised": 1, "repeated": 1, "old": 0, "newer": 0, "waiting": 0}
    assert joined.sources == {"unspecified": 2, "reviewer": 2}
    # The same from a cache, and before the revision was reported.
    again = run(log, shelf, 48, cache=tmp_path / "cache", checkpoint=POINT).experience
    assert again.source.tolist() == experience.source.tolist()
    assert run(log, shelf, 1.5).sources == {"unspecified": 2, "reviewer": 1, "merchant": 1}
    path = tmp_path / "e.parquet"
    write(experience, path)
    assert read(path).source.tolist() == experience.source.tolist()
