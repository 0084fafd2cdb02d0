"""`scorer ship` to a real S3-compatible server: kills, 503, cut answers, wrong credentials."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import components
import pytest
from logs import write_segment
from s3_server import BUCKET, S3Server, faulty_proxy
from shipping import SERVER, delta_keys, keys_of, mixed, shipper, write_log, write_settings
from waiting import wait_until

from scorer.errors import LogError
from scorer.log.scanning import Entry
from scorer.log.source.addresses import decision_source
from scorer.log.source.directories import log_directories
from scorer.log.source.indexed import IndexedLogs
from scorer.log.source.interface import SourceBatch, SourceQuery
from scorer.log.source.settings import SourceSettings
from scorer.log.source.table_records import TableRecords

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    components.require("versitygw")
    with S3Server() as server:
        yield server


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """A prefix of its own for each test."""
    return f"s3://{BUCKET}/{request.node.name}"


def mark_of(directory: Path) -> int:
    path = directory / "decisions/SHIPPED"
    return int(path.read_text()) if path.exists() else 0


def delta(url: str, options: dict[str, str]) -> dict[str, object]:
    return {"url": url, "options": options, "timeout_seconds": 5.0}


def test_options_can_come_from_the_environment(tmp_path: Path, s3: S3Server, url: str) -> None:
    log = write_log(tmp_path / "decisions", [30])
    config = write_settings(tmp_path, delta={"url": url})
    with shipper(tmp_path, "--config", str(config), "--once", env=s3.options()) as process:
        assert process.wait() == 0, process.text
    assert delta_keys(url, s3.options()) == keys_of(log)


def test_the_tables_are_a_source(tmp_path: Path, s3: S3Server, url: str) -> None:
    """Learning reads what was shipped, continues, and reports a storage that is away in one line."""
    log = write_log(tmp_path / "decisions", [60], sealed=False)
    config = write_settings(tmp_path, delta=delta(url, s3.options()), ship={"flush_rows": 12})
    with shipper(tmp_path, "--config", str(config), "--once") as process:
        assert process.wait() == 0, process.text
    settings = SourceSettings(options=s3.options(), timeout_seconds=2.0)
    [server] = decision_source([f"delta:{url}"], settings=settings).logs
    [local] = log_directories([log]).logs
    for query in (SourceQuery(), SourceQuery("action.authorise", rows=5)):
        found, wanted = (list(one.read(query)) for one in (server, local))
        assert rows_of(found) == rows_of(wanted)
    one = server.read(SourceQuery())
    assert server.read(SourceQuery(), one.position).continued
    wrong = {**s3.options(), "AWS_SECRET_ACCESS_KEY": "wrong"}
    missing = f"delta:{url}-missing"
    for address, options, message in (
        (f"delta:{url}", wrong, "check the url and the credentials"),
        (missing, s3.options(), "does not exist; name the url"),
        (f"delta:{url}", s3.options("http://127.0.0.1:9"), "cannot be read"),
    ):
        away = SourceSettings(options=options, timeout_seconds=2.0)
        with pytest.raises(LogError, match=message) as error:
            _ = decision_source([address], settings=away).logs
        assert "\n" not in str(error.value)


def test_the_platform_reads_the_tables(
    tmp_path: Path, s3: S3Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole records are those of the log; a storage that fails for a while neither loses nor doubles any."""
    log = write_log(tmp_path / "decisions", [60], sealed=False)
    config = write_settings(
        tmp_path, delta=delta(url, s3.options()) | {"compact_commits": 3}, ship={"flush_rows": 12}
    )

    def ship() -> None:
        with shipper(tmp_path, "--config", str(config), "--once") as process:
            assert process.wait() == 0, process.text

    fault: list[str] = []
    local = IndexedLogs(lambda: {SERVER: log}, tmp_path / "index.sqlite")
    [wanted] = local.logs
    with faulty_proxy(
        s3, lambda _, path, __: fault[0] if fault and "_delta_log" not in path else None
    ) as endpoint:
        settings = SourceSettings(options=s3.options(endpoint))
        tables = TableRecords([url], tmp_path / "tables.sqlite", settings, refresh_seconds=0.0)
        wait_until(lambda: not tables.logs and tables.problems, "the first look")
        assert "does not exist; name the url" in tables.problems[0]
        ship()

        def is_read() -> bool:
            found = tables.logs
            assert not tables.problems, tables.problems
            return bool(found)

        wait_until(is_read, "the first files to be indexed", seconds=60)
        [own] = tables.logs
        assert own.identities == wanted.identities
        [identity] = own.identities
        seen = list(own.records(identity, 0))
        # More is shipped, and the storage fails in two ways.
        write_segment(log, 2, 61, [mixed(sequence) for sequence in range(61, 101)], sealed=False)
        ship()
        for kind in ("503", "cut"):
            fault[:] = [kind]
            # What was read before is still shown.
            wait_until(lambda: tables.logs and tables.problems, f"a problem after {kind}")
            assert [log.name for log in tables.logs] == [SERVER]
            [problem] = tables.problems
            assert "cannot be read" in problem and "\n" not in problem
            assert not list(own.records(identity, seen[-1].sequence + 1))
        fault.clear()
        wait_until(is_read, "the new files to be indexed", seconds=60)
        fault[:] = ["503"]
        with pytest.raises(LogError, match="cannot be read") as error:
            list(own.records(identity, seen[-1].sequence + 1))
        assert "\n" not in str(error.value)
        fault.clear()
        seen += own.records(identity, seen[-1].sequence + 1)
        assert texts(seen) == texts(wanted.records(identity, 0))
        assert [str(one) for one in own.newest("fraud.checkout", 9)] == [
            str(one) for one in wanted.newest("fraud.checkout", 9)
        ]
        for name in ("d1", "d2", "d61"):
            found, other = tables.of_decision(name), local.of_decision(name)
            assert found.is_complete and not found.problems
            assert sorted(texts([one for _, one in found.entries])) == sorted(
                texts([one for _, one in other.entries])
            )
        tables.close()
    local.close()
    wrong = {**s3.options(), "AWS_SECRET_ACCESS_KEY": "wrong"}
    for options, message in (
        (wrong, "check the url and the credentials"),
        (s3.options("http://127.0.0.1:9"), "cannot be read"),
    ):
        away = TableRecords(
            [url], tmp_path / "away.sqlite", SourceSettings(options=options, timeout_seconds=2.0)
        )
        wait_until(lambda away=away: not away.logs and away.problems, "the first look")
        [problem] = away.problems
        assert message in problem and "\n" not in problem
        away.close()


def texts(entries: Iterable[Entry]) -> list[str]:
    """Records as text; NaN is not equal to itself."""
    return [f"{one.sequence} {one.kind} {one.record}" for one in entries]


def rows_of(batches: list[SourceBatch]) -> dict[tuple[str, str], str]:
    """Texts of the rows by checkpoint and kind; NaN is not equal to itself. Tables have no rules."""
    found: dict[tuple[str, str], list[object]] = {}
    for batch in batches:
        rows = [{name: row[name] for name in row if name != "rules"} for row in batch.rows.to_pylist()]
        found.setdefault((batch.checkpoint, batch.kind), []).extend(rows)
    return {key: str(rows) for key, rows in found.items()}


def test_kills_lose_and_double_nothing(tmp_path: Path, s3: S3Server, url: str) -> None:
    chance = random.Random(7)
    log = write_log(tmp_path / "decisions", [150, 150])
    config = write_settings(
        tmp_path, delta=delta(url, s3.options()) | {"compact_commits": 4}, ship={"flush_rows": 12}
    )
    kills = 0
    while mark_of(tmp_path) < 280:
        with shipper(tmp_path, "--config", str(config)) as process:
            wanted = min(mark_of(tmp_path) + chance.randrange(1, 80), 300)
            wait_until(
                lambda wanted=wanted, process=process: (
                    mark_of(tmp_path) >= wanted or process.process.poll() is not None
                ),
                "deliveries",
                seconds=60,
            )
            assert process.process.poll() is None, process.text
            process.kill()
            kills += 1
    with shipper(tmp_path, "--config", str(config), "--once") as process:
        assert process.wait() == 0, process.text
    assert kills > 2
    assert delta_keys(url, s3.options()) == keys_of(log)


def test_a_server_that_is_killed_and_comes_back_gets_everything_once(
    tmp_path: Path, s3: S3Server, url: str
) -> None:
    log = write_log(tmp_path / "decisions", [200])
    config = write_settings(tmp_path, delta=delta(url, s3.options()), ship={"flush_rows": 15})
    with shipper(tmp_path, "--config", str(config)) as process:
        wait_until(lambda: mark_of(tmp_path) > 30, "deliveries", seconds=60)
        s3.kill()
        wait_until(lambda: "next try in" in process.text, "a retry", seconds=60)
        s3.start()
        wait_until(lambda: mark_of(tmp_path) == 201, "the rest", seconds=90)
        assert process.stop() == 0, process.text
    assert delta_keys(url, s3.options()) == keys_of(log)


def test_answers_503_and_cut_answers_are_tried_again(tmp_path: Path, s3: S3Server, url: str) -> None:
    """Also a commit that succeeded although its answer was 503."""
    log = write_log(tmp_path / "decisions", [60])
    chance = random.Random(11)
    faults = {"503": 0, "503 after": 0, "cut": 0}

    def fault(method: str, path: str, _: int) -> str | None:
        # A delivery takes some dozen requests, and the storage's client repeats those that get a 503 twice.
        drawn, what = chance.random(), None
        if method == "PUT" and "_delta_log" in path:
            what = "503 after" if drawn < 0.2 else None
        elif drawn < 0.03:
            what = "503"
        elif drawn < 0.04 and method == "GET":
            what = "cut"
        if what:
            faults[what] += 1
        return what

    with faulty_proxy(s3, fault) as endpoint:
        config = write_settings(tmp_path, delta=delta(url, s3.options(endpoint)), ship={"flush_rows": 12})
        with shipper(tmp_path, "--config", str(config), "--once") as process:
            assert process.wait(240) == 0, process.text
    assert faults["503"] and faults["503 after"], faults
    assert delta_keys(url, s3.options()) == keys_of(log)


def test_a_storage_that_answers_503_for_long_ends_the_process_with_a_reason(
    tmp_path: Path, s3: S3Server, url: str
) -> None:
    write_log(tmp_path / "decisions", [5])
    with faulty_proxy(s3, lambda *_: "503") as endpoint:
        config = write_settings(tmp_path, delta=delta(url, s3.options(endpoint)), ship={"retry_seconds": 3.0})
        with shipper(tmp_path, "--config", str(config), "--once") as process:
            assert process.wait(120) == 1
    last = process.text.splitlines()[-1]
    assert last.startswith("error: ") and "given up, a restart continues" in last
    assert mark_of(tmp_path) == 0


def test_a_wrong_secret_is_refused_at_once(tmp_path: Path, s3: S3Server, url: str) -> None:
    write_log(tmp_path / "decisions", [5])
    config = write_settings(tmp_path, delta=delta(url, s3.options(secret="not-it-9137")))
    with shipper(tmp_path, "--config", str(config), "--once") as process:
        assert process.wait() == 1
    last = process.text.splitlines()[-1]
    assert "check the url and the credentials" in last and "not-it" not in last
    assert last.isprintable()
