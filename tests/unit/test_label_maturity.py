"""Tests of maturity curves: known delays recovered, counting rules of reports, the file, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import labelling
import numpy as np
import pytest
from bundles import score_bundle_of
from labelling import DAY, HOUR, POINT, START, MemoryLog, MemorySource, ScoreRecords, report
from logs import write_segment
from typer.testing import CliRunner

from scorer.cli import app
from scorer.learn.errors import DataError
from scorer.learn.labels.curves import (
    CurveSegment,
    MaturityCurves,
    estimate_curves,
    first_reports,
    read_curves,
)
from scorer.learn.labels.histories import Histories, HistoryQuery, read_histories
from scorer.learn.labels.page import maturity_page

DAYS = 120
COUNT = 40_000


class Traffic:
    """Decisions of 120 days, of which few ever get a chargeback, after a log-normal delay.

    From `slower_from` days on, the delays are twice as long.
    """

    def __init__(self, seed: int, slower_from: float = np.inf) -> None:
        random = np.random.default_rng(seed)
        self.names = [f"d{at}" for at in range(COUNT)]
        self.day = np.sort(random.uniform(0, DAYS, COUNT))
        self.lane = np.where(random.random(COUNT) < 0.5, "fast", "slow")
        self.delay = 8 * np.exp(0.6 * random.normal(size=COUNT))
        self.delay *= np.where(self.lane == "slow", 2.0, 1.0) * np.where(self.day >= slower_from, 2.0, 1.0)
        self.fraud = random.random(COUNT) < 0.05
        self.confirmed = ~self.fraud & (random.random(COUNT) < 0.2)
        self.wait = np.where(self.confirmed, random.exponential(1.0, COUNT), self.delay)
        self.time_ms = START + np.round(self.day * DAY).astype(np.int64)
        self.known_ms = self.time_ms + np.round(self.wait * DAY).astype(np.int64)

    def source(self, logs: int = 1) -> MemorySource:
        """Return a source; decisions and their reports can be in different logs."""
        found = []
        reported = np.flatnonzero(self.fraud | self.confirmed)
        for place in range(logs):
            own = np.arange(COUNT)[place::logs]
            told = reported[(reported // logs) % logs == place]
            names = [self.names[at] for at in own]
            found.append(
                MemoryLog(
                    f"log-{place}",
                    [
                        labelling.decisions(names, self.time_ms[own], lane=self.lane[own].tolist()),
                        labelling.outcomes(
                            [self.names[at] for at in told],
                            ["fraud"] * len(told),
                            self.fraud[told],
                            self.known_ms[told],
                            first=COUNT,
                        ),
                    ],
                )
            )
        return MemorySource(found)


def histories(traffic: Traffic, logs: int = 1, **query: Any) -> Histories:
    wanted = HistoryQuery(
        checkpoint=POINT, **{"as_of_ms": START + DAYS * DAY, "segments": ("lane",), **query}
    )
    return read_histories(traffic.source(logs), labelling.EMPTY_SHELF, wanted)


def curves(found: Histories, **more: Any) -> MaturityCurves:
    return estimate_curves(found, {"fraud": first_reports(found, "fraud", 0.5)}, **more)


def test_known_delays_and_shares_are_recovered_although_young_decisions_are_not_mature() -> None:
    traffic = Traffic(1)
    found = curves(histories(traffic), horizon_ms=100 * DAY)
    for name, factor in (("fast", 1.0), ("slow", 2.0)):
        one = found.of("fraud", CurveSegment(name="lane", value=name))
        assert not one.pooled
        # The true distribution function, within the horizon.
        ages = np.array([2, 5, 8, 16, 30, 60]) * DAY
        whole = _log_normal(100 / factor)
        truth = np.array([_log_normal(age / DAY / factor) for age in ages])
        assert one.maturity(ages) == pytest.approx(truth / whole, abs=0.035)
        assert one.arrives_positive.low <= 0.05 * whole <= one.arrives_positive.high
        assert one.reported(ages) == pytest.approx(0.05 * truth + 0.19 * (1 - np.exp(-ages / DAY)), abs=0.012)
        left = 0.05 * (whole - truth)
        expected = left / (1 - 0.05 * truth - 0.19 * (1 - np.exp(-ages / DAY)))
        assert one.positive_later(ages) == pytest.approx(expected, abs=0.006)
    assert found.of("fraud").late_share < 0.02
    assert found.window.decisions == COUNT and set(found.window.findings) == {"after the moment"}


def test_a_doubled_delay_shows_although_the_newest_decisions_have_had_no_time() -> None:
    traffic = Traffic(2, slower_from=60)
    change = START + 60 * DAY
    before = curves(histories(traffic, until_ms=change), horizon_ms=55 * DAY)
    after = curves(histories(traffic, since_ms=change), horizon_ms=55 * DAY)
    for name, median in (("fast", 8.0), ("slow", 16.0)):
        segment = CurveSegment(name="lane", value=name)
        of = {one: _half(found.of("fraud", segment)) / DAY for one, found in (("b", before), ("a", after))}
        # Conditional on the horizon, slow delays lose part of their tail.
        assert of["b"] == pytest.approx(_median_within(median, 55), rel=0.15)
        assert of["a"] == pytest.approx(_median_within(2 * median, 55), rel=0.15)
    # What an average over the known delays would say of the newer decisions is far too short.
    own = traffic.fraud & (traffic.day >= 60) & (traffic.known_ms <= START + DAYS * DAY)
    assert np.median(traffic.delay[own & (traffic.lane == "slow")]) < 0.8 * 32


def _log_normal(days: float) -> float:
    from scipy.special import ndtr

    return float(ndtr(np.log(days / 8) / 0.6))


def _median_within(median: float, horizon: float) -> float:
    from scipy.special import ndtr, ndtri

    return float(median * np.exp(0.6 * ndtri(ndtr(np.log(horizon / median) / 0.6) / 2)))


def _half(curve: Any) -> int:
    """Return the age at which half of the positive reports are there."""
    return int(curve.age_of(0.5))


def test_the_result_does_not_depend_on_the_logs_that_hold_the_records() -> None:
    traffic = Traffic(3)
    one, three = curves(histories(traffic)), curves(histories(traffic, logs=3))
    assert one.curves == three.curves
    assert one.window.data_digest == three.window.data_digest
    assert one.digest != three.digest  # The window names the logs.


def test_small_segments_and_unknown_kinds_use_the_curve_of_all_decisions() -> None:
    found = curves(histories(Traffic(4)), least=6_000, horizon_ms=50 * DAY)
    pooled = found.of("fraud")
    for value in ("fast", "slow"):
        one = found.of("fraud", CurveSegment(name="lane", value=value))
        assert one.pooled and one.steps == pooled.steps and one.decisions < pooled.decisions
    assert found.of("fraud", CurveSegment(name="lane", value="other")) == pooled
    with pytest.raises(DataError, match='none of the kind "chargeback"; there are fraud'):
        found.of("chargeback")
    with pytest.raises(DataError, match="no decision is as old as the horizon of 500 days"):
        curves(histories(Traffic(4)), horizon_ms=500 * DAY)


def small(reports: Any, **query: Any) -> Histories:
    """Return the histories of three decisions at days 0, 1 and 2, as known on day 10."""
    names = ["a", "b", "c"]
    time_ms = START + np.arange(3) * DAY
    log = MemoryLog("log", [labelling.decisions(names, time_ms), reports])
    wanted = HistoryQuery(checkpoint=POINT, **{"as_of_ms": START + 10 * DAY, **query})
    return read_histories(MemorySource([log]), labelling.EMPTY_SHELF, wanted)


def test_the_first_report_ends_the_delay_and_the_highest_revision_gives_the_value() -> None:
    names = ["a", "a", "a", "b", "b", "c", "gone"]
    found = small(
        labelling.outcomes(
            names,
            ["fraud"] * 7,
            [1, 0, 0, 1, 0, 1, 1],
            START + np.array([3, 5, 6, 4, 5, 11, 4]) * DAY,
            first=10,
            revision=np.array([0, 1, 1, 2, 2, 0, 0]),
        )
    )
    first, cause, changed = first_reports(found, "fraud", 0.5)
    # The report about "c" is later than the moment. The second one about "b" contradicts the first.
    assert ((first - START) // DAY).tolist()[:2] == [3, 4] and first[2] == 0
    assert cause.tolist() == [2, 1, 0] and changed.tolist() == [True, False, False]
    counts = {one.name: one.count for one in found.findings}
    assert counts == {
        "outcome without decision": 1,
        "duplicate outcome": 1,
        "revised outcome": 1,
        "conflicting outcomes": 1,
        "after the moment": 1,
    }


def test_unproven_reports_count_only_if_asked_for_and_a_clock_can_be_the_occurrence() -> None:
    reports = labelling.outcomes(
        ["a", "b"],
        ["fraud", "fraud"],
        [1, 1],
        START + np.array([8, 9]) * DAY,
        first=10,
        proof=np.array([1, 2], np.int8),
        occurred_at_ms=START + np.array([0, 4]) * DAY,
    )
    first, cause, _ = first_reports(small(reports), "fraud", 0.5)
    assert cause.tolist() == [0, 1, 0] and first[1] == START + 9 * DAY
    both = small(reports, unproven="include", clock="occurred")
    first, cause, _ = first_reports(both, "fraud", 0.5)
    assert cause.tolist() == [1, 1, 0] and first.tolist()[:2] == [START, START + 4 * DAY]


def test_a_withdrawn_record_and_a_second_record_of_an_id_do_not_count() -> None:
    names = ["a", "a", "b"]
    time_ms = START + np.array([1, 0, 2]) * DAY
    log = MemoryLog(
        "log",
        [
            labelling.decisions(names, time_ms),
            labelling.outcomes(["b"], ["fraud"], [1], [START + 3 * DAY], first=10),
            labelling.SourceBatch(POINT, "withdrawals", _withdrawal(10)),
        ],
    )
    wanted = HistoryQuery(checkpoint=POINT, as_of_ms=START + 10 * DAY)
    found = read_histories(MemorySource([log]), labelling.EMPTY_SHELF, wanted)
    assert found.time_ms.tolist() == [START, START + 2 * DAY] and len(found.reports) == 0
    assert {one.name: one.count for one in found.findings} == {"repeated decision": 1}


def _withdrawal(sequence: int) -> Any:
    from scorer.log.source import rows

    return rows.table({"sequence": [11], "withdrawn": [sequence]}, rows.WITHDRAWALS)


def test_a_file_is_read_back_and_one_that_was_changed_is_refused(tmp_path: Path) -> None:
    found = curves(histories(Traffic(5)))
    found.write(tmp_path / "curves.json")
    assert read_curves(tmp_path / "curves.json") == found
    assert (tmp_path / "curves.json").stat().st_size < 200_000
    content = json.loads((tmp_path / "curves.json").read_text())
    content["curves"][0]["arrives"]["value"] = 0.5
    (tmp_path / "curves.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="was changed after it was written"):
        read_curves(tmp_path / "curves.json")
    (tmp_path / "curves.json").write_text("[]")
    with pytest.raises(DataError, match="write it again with `scorer outcomes maturity`"):
        read_curves(tmp_path / "curves.json")


def test_the_page_shows_kinds_segments_and_a_horizon_that_is_too_short() -> None:
    page = maturity_page(curves(histories(Traffic(6)), horizon_ms=20 * DAY))
    assert page.count("<svg") == 2 and "of the reports come in the last fifth of the horizon" in page
    assert "fast" in page and "Maturity by lane" in page


def test_the_command_estimates_by_a_feature_of_the_bundle(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    score_bundle_of(bundle, labelling.FEATURES)
    make = ScoreRecords(bundle)
    records = []
    for at in range(300):
        records.append(make.decision(f"d{at}", at, [10.0, at % 2, float("nan")]))
        if at % 3 == 0:
            records.append(report(f"d{at}", at + (10 if at % 2 else 20), "fraud"))
    write_segment(tmp_path / "log", 1, 1, records)
    as_of = "2026-02-01"
    common = ["outcomes", "maturity", "--log", str(tmp_path / "log"), "--bundles", str(bundle)]
    common += ["--checkpoint", POINT, "--as-of", as_of, "--horizon-days", "14"]
    output, page = tmp_path / "curves.json", tmp_path / "page.html"
    done = CliRunner().invoke(
        app,
        [*common, "--segment", "country", "--segment", "night", "-o", str(output), "--page", str(page)],
    )
    assert done.exit_code == 0, done.output
    found = read_curves(output)
    of = {value: found.of("fraud", CurveSegment(name="country", value=value)) for value in ("DE", "FR")}
    assert {value: one.quantiles_ms["0.5"] / HOUR for value, one in of.items()} == {"DE": 20, "FR": 10}
    assert {one.segment.value for one in found.curves if one.segment and one.segment.name == "night"} == {
        "(missing)"
    }
    assert "country=DE" in done.output and page.read_text().startswith("<!")
    wrong = CliRunner().invoke(app, [*common, "--segment", "amount"])
    assert isinstance(wrong.exception, DataError) and 'segment "amount" is a number' in str(wrong.exception)
