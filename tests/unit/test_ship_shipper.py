"""Tests of the process: lock, shipped mark, retries, metrics, settings and messages, with sinks in memory."""

from __future__ import annotations

import json
import random
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from logs import write_segment
from servers import scorer_in_process
from shipping import SERVER, MemorySink, decision, every_kind, keys_of, mixed, write_log, write_settings
from waiting import wait_until

from scorer.config.problems import InvalidSettingsError
from scorer.errors import LogError, ShipError, SinkUnavailableError
from scorer.log import LogReader, prune
from scorer.ship.backoff import Backoff
from scorer.ship.lag import lag
from scorer.ship.listener import MetricsListener
from scorer.ship.lock import shipping
from scorer.ship.metrics import ShipMetrics
from scorer.ship.settings import ShipSettings, example, load
from scorer.ship.shipper import run
from scorer.ship.worker import Worker

Say = Callable[[str], None]


def settings(log: Path, **ship: Any) -> ShipSettings:
    values = {"log": log, "server": SERVER, "flush_seconds": 0.05, "metrics_listen": None}
    return ShipSettings.model_validate({"ship": values | ship})


def ship_once(log: Path, *sinks: MemorySink, **own: Any) -> list[Worker]:
    said: list[str] = own.pop("said", [])
    return run(settings(log, **own), once=True, sinks=sinks, say=said.append)


def mark_of(log: Path) -> int:
    path = log / "SHIPPED"
    return int(path.read_text()) if path.exists() else 0


def test_once_ships_the_log_and_ends(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", [50, 1, 49])
    sink = MemorySink()
    (worker,) = ship_once(log, sink, flush_rows=7)
    assert sink.rows == keys_of(log) and sink.rows.total() == 100
    assert worker.counts.records == 100 and sink.commits == 15
    assert mark_of(log) == 101
    ship_once(log, sink)
    assert sink.rows == keys_of(log), "a second run delivers nothing twice"


def test_payloads_are_the_bytes_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write_segment(log, 1, 1, every_kind(), sealed=False)
    sink = MemorySink()
    ship_once(log, sink)
    assert list(sink.payloads.values()) == every_kind()


def test_an_empty_log_is_no_error(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", [])
    sink = MemorySink()
    (worker,) = ship_once(log, sink)
    assert worker.counts.records == 0 and mark_of(log) == 0


def test_the_mark_is_that_of_the_slowest_sink_and_prune_respects_it(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", [5, 5, 5, 5])

    def after_two_batches(step: str) -> None:
        if step == "before" and slow.commits == 1:
            raise ShipError("the sink is full")

    fast, slow = MemorySink(), MemorySink(after_two_batches, "slow")
    with pytest.raises(ShipError, match="the sink is full"):
        ship_once(log, fast, slow, flush_rows=7)
    assert slow.rows.total() == 7 and mark_of(log) == 8
    done = prune(log, max_bytes=0)
    assert [name[:10] for name in done.removed] == ["0000000001"] and done.blocked == "not_shipped"
    assert slow.rows.total() == 7, "records that one sink lacks stay in the log"
    slow._fail = lambda _: None
    ship_once(log, fast, slow)
    assert fast.rows == slow.rows and mark_of(log) == 21


def test_a_second_shipper_of_a_log_is_refused(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", [5])
    sink = MemorySink()
    with shipping(log), pytest.raises(ShipError, match="is shipped by another process") as refused:
        ship_once(log, sink)
    assert "\n" not in str(refused.value) and not sink.rows
    ship_once(log, sink)
    assert sink.rows.total() == 5


def test_the_lock_leaves_no_file_in_the_log(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", [5])
    ship_once(log, MemorySink())
    reader = LogReader(log)
    assert len(list(reader.payloads())) == 5 and not reader.findings


def test_a_log_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShipError, match=r"\[log\] dir"):
        ship_once(tmp_path / "nothing", MemorySink())


def test_a_sink_that_comes_back_gets_everything_once(tmp_path: Path) -> None:
    """A delivery that fails after it has succeeded, as when a reply is lost, is not repeated."""
    log = write_log(tmp_path / "log", [40])
    chance = random.Random(3)

    def fail(step: str) -> None:
        if chance.random() < 0.4:
            raise SinkUnavailableError(f"503 at {step}")

    said: list[str] = []
    sink = MemorySink(fail)
    (worker,) = ship_once(log, sink, flush_rows=3, said=said, retry_seconds=86_400)
    assert sink.rows == keys_of(log)
    assert worker.counts.retries > 3
    assert any("503 at before; next try in 0." in line for line in said)


def test_a_sink_that_stays_away_ends_the_process_with_a_reason(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", [4])

    def away(_: str) -> None:
        raise SinkUnavailableError("the broker does not answer")

    with pytest.raises(ShipError, match="does not answer; given up, a restart continues") as ended:
        ship_once(log, MemorySink(away), retry_seconds=1)
    assert "\n" not in str(ended.value) and mark_of(log) == 0


def test_one_sink_that_fails_does_not_leave_the_other_in_the_middle(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", [30])

    def refuse(_: str) -> None:
        raise ShipError("no permission")

    good = MemorySink()
    with pytest.raises(ShipError, match="no permission"):
        run(settings(log), sinks=[MemorySink(refuse, "bad"), good], say=lambda _: None)
    assert good.rows == keys_of(log) or not good.rows


def test_an_unexpected_error_is_reported_with_the_sink(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", [4])

    def broken(_: str) -> None:
        raise ZeroDivisionError("division by zero")

    with pytest.raises(ShipError, match="memory: division by zero"):
        ship_once(log, MemorySink(broken))


class Running:
    """A shipper in a thread; the sinks are in memory."""

    def __init__(self, log: Path, sink: MemorySink, say: Say, **own: Any) -> None:
        self.error: Exception | None = None
        self._stop = threading.Event()
        real = sink.upkeep

        def upkeep() -> str:
            if self._stop.is_set():
                raise ShipError("stopped by the test")
            return real()

        sink.upkeep = upkeep  # type: ignore[method-assign]
        self.thread = threading.Thread(target=self._run, args=(settings(log, **own), sink, say))
        self.thread.start()

    def _run(self, own: ShipSettings, sink: MemorySink, say: Say) -> None:
        try:
            run(own, sinks=[sink], say=say)
        except ShipError as error:
            self.error = error

    def stop(self) -> None:
        self._stop.set()
        self.thread.join(30)
        assert not self.thread.is_alive()


def test_new_records_are_shipped_while_it_runs_and_reported(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", [5])
    sink = MemorySink()
    said: list[str] = []
    running = Running(log, sink, said.append, metrics_listen="127.0.0.1:0")
    try:
        wait_until(lambda: sink.rows.total() == 5, "the first records")
        write_segment(log, 1, 1, [mixed(n) for n in range(1, 9)])
        write_segment(log, 2, 9, [mixed(9)], sealed=False)
        wait_until(lambda: sink.rows.total() == 9, "the later records")
        url = next(line for line in said if line.startswith("metrics: ")).removeprefix("metrics: ")
        wait_until(lambda: 'scorer_ship_records_total{sink="memory"} 9' in _get(url), "the metrics")
        text = _get(url)
        assert 'scorer_ship_sequence{sink="memory"} 10' in text
        assert 'scorer_ship_retries_total{sink="memory"} 0' in text
        assert _get(url.replace("/metrics", "/health")) == "ok\n"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            _get(url.replace("/metrics", "/other"))
    finally:
        running.stop()
    assert str(running.error) == "stopped by the test"
    assert sink.rows == keys_of(log) and mark_of(log) == 10


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def test_every_metric_is_documented() -> None:
    metrics = ShipMetrics()
    metrics.start("delta")
    documented = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    for line in metrics.text().splitlines():
        if line.startswith("# TYPE"):
            name = line.split()[2].removesuffix("_total")
            assert f"| `{name}` |" in documented, name


def test_the_lag_counts_what_a_sink_lacks(tmp_path: Path) -> None:
    log = tmp_path / "log"
    now = time.time_ns() // 1000
    ages = [decision(n, decided_at_us=now - (100 - n) * 1_000_000) for n in range(1, 11)]
    write_segment(log, 1, 1, ages[:6])
    write_segment(log, 2, 7, ages[6:], sealed=False)
    assert lag(log, 11).records == 0 and lag(log, 11).seconds == 0
    behind = lag(log, 4)
    assert behind.records == 7 and 96 <= behind.seconds < 130
    assert lag(log, 0).records == 10


def test_intervals_double_up_to_a_limit() -> None:
    now = [0.0]
    backoff = Backoff(100, lambda: now[0])
    waits = []
    while (wait := backoff.failed()) is not None:
        waits.append(wait)
        now[0] += wait
    assert 0.15 < waits[0] <= 0.2 and max(waits) <= 30
    assert sum(waits) == pytest.approx(100)
    assert all(later > earlier for earlier, later in pairwise(waits[:7]))
    backoff.succeeded()
    assert 0.15 < (backoff.failed() or 0) <= 0.2


# --- settings and command line ---


def test_the_example_is_valid_and_has_every_default(tmp_path: Path) -> None:
    path = tmp_path / "ship.toml"
    path.write_text(example())
    loaded, own = load(path), ShipSettings()
    assert loaded.kafka == own.kafka and loaded.delta == own.delta
    assert loaded.ship.model_copy(update={"log": own.ship.log}) == own.ship
    assert loaded.ship.log == tmp_path / "decisions"


def test_every_setting_is_documented_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs/log-shipping.md").read_text()
    for name, section in ShipSettings.model_fields.items():
        part = page.partition(f"\n`[{name}]`\n")[2].partition("\n`[")[0]
        rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", part, flags=re.MULTILINE))
        fields = section.annotation.model_fields  # type: ignore[union-attr]
        assert list(rows) == list(fields), name
        for key, field in fields.items():
            default = field.default
            if isinstance(default, float):
                default = f"{default:g}"
            elif isinstance(default, bool):
                assert rows[key] == str(default).lower(), key
            if default not in ("", {}) and not isinstance(default, bool):
                assert rows[key] == f"`{default}`", key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[ship]\nserver = "a b"', 'ship.server: "a b" is not the id of a server'),
        ('[ship]\nmetrics_listen = "0.0.0.0:7703"', "metrics_allow_remote"),
        ("[ship]\nflush_second = 1", 'did you mean "flush_seconds"'),
        ("[delta]\ncompact_commits = 1", "1 is out of range; it must be at least 2"),
        ('[delta]\noptions = { AWS_SECRET_ACCESS_KEY = "$SCORER_TEST_NONE" }', "SCORER_TEST_NONE is not set"),
        ('[kafka]\ntopic = "a"\npositions = "a"', 'topic and positions are both "a"'),
    ],
)
def test_bad_settings_have_one_line_each(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "ship.toml"
    path.write_text(text)
    with pytest.raises(InvalidSettingsError) as refused:
        load(path)
    assert message in str(refused.value) and str(path) in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_secrets_are_read_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_SECRET", "hush")
    path = write_settings(
        tmp_path, kafka={"options": {"sasl.password": "$THE_SECRET", "sasl.username": "me"}}
    )
    assert load(path).kafka.options == {"sasl.password": "hush", "sasl.username": "me"}


def test_a_relative_table_is_beside_the_settings(tmp_path: Path) -> None:
    assert load(write_settings(tmp_path, delta={"url": "lake"})).delta.url == str(tmp_path / "lake")
    assert load(write_settings(tmp_path, delta={"url": "s3://b/p"})).delta.url == "s3://b/p"


def test_the_command_names_what_is_missing(tmp_path: Path) -> None:
    write_log(tmp_path / "decisions", [3])
    done = scorer_in_process("ship", "--log", str(tmp_path / "decisions"), "--once")
    assert done.returncode == 1 and "no sink is set" in done.stderr
    shown = scorer_in_process("ship", "config")
    assert shown.returncode == 0 and "[kafka]" in shown.stdout
    checked = scorer_in_process("ship", "config", str(write_settings(tmp_path)))
    assert checked.returncode == 0 and checked.stdout.endswith(": ok\n")
    bad = tmp_path / "bad.toml"
    bad.write_text("[ship]\nflush_rows = 0\n")
    assert scorer_in_process("ship", "config", str(bad)).returncode == 64


def test_a_taken_port_is_named() -> None:
    first = MetricsListener("127.0.0.1:0", lambda: "")
    try:
        with pytest.raises(ShipError, match=f"metrics_listen {first.address}: Address already in use"):
            MetricsListener(first.address, lambda: "")
    finally:
        first.close()


def test_a_mark_that_cannot_be_written_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scorer.ship import shipper

    def fail(*_: Any) -> int:
        raise LogError("cannot write SHIPPED")

    monkeypatch.setattr(shipper, "mark_shipped", fail)
    log = write_log(tmp_path / "log", [3])
    with pytest.raises(ShipError, match="cannot write SHIPPED"):
        ship_once(log, MemorySink())


def test_the_summary_of_a_run_is_one_line_per_sink(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", [12])
    said: list[str] = []
    ship_once(log, MemorySink(), said=said)
    assert said[-1] == "memory: 12 records in 1 commits; delivered up to sequence 12"


def test_json_of_a_position_is_complete() -> None:
    from scorer.log.shipped.position import ShipPosition

    position = ShipPosition(1, 2, 3, 4)
    assert ShipPosition.of(json.loads(json.dumps(position.values()))) == position
    assert ShipPosition.of({}) is None
    with pytest.raises(ValueError, match="incomplete"):
        ShipPosition.of({"log": 1})
