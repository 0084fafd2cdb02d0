"""Test that the platform shows of shipped tables what it shows of the logs of the servers.

Three real servers answer, one of which is killed. Real shippers copy their logs to tables meanwhile, and one
platform reads the tables while they grow. Another one reads the logs.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from observing import START, World
from platform_shop import COUNT, DELAY, POINT, figures, servers, shown
from shipping import shipper, write_settings
from waiting import wait_until

from scorer.log import LogReader
from scorer.log.source.locations import TableAccess
from scorer.log.source.records import RecordSource
from scorer.log.source.settings import SourceSettings
from scorer.log.source.table_records import TableRecords
from scorer.registry import Registry
from scorer.release.backtest import judge
from scorer.release.backtest.job import Job, Result, as_document
from scorer.release.backtest.running import Backtests
from scorer.release.gates.defaults import BACKTEST
from scorer.release.store import micros
from scorer.token_keys import add_key

SERVERS = ("live-1", "live-2", "live-3")
KILLED = 1


def backtest_of(world: World) -> Job:
    return Job(
        checkpoint=POINT,
        candidate=str(world.own),
        live=str(world.live),
        others=(),
        logs=world.readouts.logs(),
        begin=micros(START),
        end=micros(START + timedelta(days=1)),
        outcome="fraud",
        unproven="exclude",
        approve="approve",
        amount="amount",
        most=1_000_000,
        positives=2,
        gates=BACKTEST,
    )


@pytest.mark.timeout(300)
def test_tables_are_shown_as_the_logs(
    tmp_path: Path, built_bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(tmp_path / "registry")
    registry.alias("fraud-checkout", "live", registry.push(built_bundles["score-1"]))
    registry.push(built_bundles["score-2"])
    add_key(tmp_path / "keys.json")
    lake = tmp_path / "lake"

    def tables(_: World, index: Path) -> RecordSource:
        return TableRecords([str(lake)], index, SourceSettings(), refresh_seconds=0.0)

    bundles = built_bundles["score-1"], built_bundles["score-2"]
    for name in ("of-logs", "of-tables"):
        (tmp_path / name / "logs").mkdir(parents=True)
    by_logs = World(tmp_path / "of-logs", *bundles, servers=SERVERS)
    by_tables = World(tmp_path / "of-tables", *bundles, servers=SERVERS, source_of=tables)
    configs = []
    for name in SERVERS:
        folder = tmp_path / f"ship-{name}"
        folder.mkdir()
        own = {"server": name, "log": str(by_logs.logs[name].path), "flush_seconds": 0.05}
        configs.append(write_settings(folder, ship=own, delta={"url": str(lake), "compact_commits": 5}))

    # A busy machine may need longer for the files of one look.
    monkeypatch.setattr("scorer.log.source.table_records._SLICE_SECONDS", 60.0)
    monkeypatch.setattr("scorer.log.source.table_records._INDEX_SECONDS", 60.0)
    read: list[int] = []

    def has_grown() -> bool:
        by_tables.readouts.collect()
        read.append(by_tables.readouts.measure(by_tables.change))
        return read[-1] > max(read[:-1], default=0)

    def before(number: int) -> None:
        if number == COUNT // 2:
            shop.kill(KILLED)
        if number % 10 == 5:
            # The rows are shipped while the report is made.
            wait_until(has_grown, "more observations in the tables", seconds=60)

    with ExitStack() as shippers:
        with servers([by_logs, by_tables], tmp_path / "servers", tmp_path / "registry") as shop:
            started = [shippers.enter_context(shipper(one.parent, "--config", str(one))) for one in configs]
            shop.buy_all(before)
        assert [one.stop() for one in started] == [0] * len(SERVERS), [one.text for one in started]
    # Also what the killed server has written last.
    for config in configs:
        with shipper(config.parent, "--config", str(config), "--once") as once:
            assert once.wait() == 0, once.text
    assert len(set(read)) > 5, read

    logs, found = shown(by_logs), shown(by_tables)
    assert found.servers == set(SERVERS)
    assert found.listed == logs.listed
    assert sum(bool(one["outcomes"]) for one in found.listed) == sum(
        1 for number in range(COUNT) if (number + DELAY) % 5
    )
    assert found.single == logs.single
    # Observations are recorded after the answer, so the killed server can have lost the last ones.
    observed = observed_payments(by_logs)
    assert COUNT - 10 <= observed <= COUNT
    for ours, theirs, count in (
        (found.report, logs.report, observed),
        (found.metrics, logs.metrics, COUNT),
    ):
        assert figures(ours) == figures(theirs)
        assert ours.rows == theirs.rows == count
    assert found.report.examples == logs.report.examples
    assert found.report.summary == logs.report.summary
    assert found.report.gates == logs.report.gates
    assert found.metrics.notes == logs.metrics.notes

    # The same backtest: over the logs, over the tables in its own process, and over both together.
    wanted = judge.run(backtest_of(by_logs), lambda _: None)
    assert wanted.rows and wanted.positives, wanted.words
    access = TableAccess(tmp_path / "of-tables" / "data" / "decisions.sqlite", SourceSettings())
    job = backtest_of(by_tables)
    assert list(job.logs) == list(SERVERS)
    backtests = Backtests(tmp_path / "backtests", environment=access.variables())
    try:
        backtests.start("cr-000001", job)
        wait_until(lambda: ended(backtests), "the backtest", seconds=120)
        assert document(result_of(backtests)) == document(wanted)
    finally:
        backtests.close()
    for name, value in access.variables().items():
        monkeypatch.setenv(name, value)
    both = {**job.logs, "live-1": backtest_of(by_logs).logs["live-1"]}
    assert document(judge.run(replace(job, logs=both), lambda _: None)) == document(wanted)


def observed_payments(world: World) -> int:
    """Return the number of payments of which a log has an observation by the candidate."""
    return len(
        {
            record.observation.decision.decision_id
            for log in world.logs.values()
            for _, record in LogReader(log.path).records()
            if record.HasField("observation") and record.observation.decision.lane == "cr-000001"
        }
    )


def ended(backtests: Backtests) -> bool:
    state = backtests.look("cr-000001")
    assert state is not None
    assert not state.error, state.error
    return state.result is not None


def result_of(backtests: Backtests) -> Result:
    state = backtests.look("cr-000001")
    assert state is not None
    assert state.result is not None
    return state.result


def document(result: Result) -> str:
    return json.dumps(as_document(result))
