"""Tests of the settings of shipped tables, and of the source that the platform makes of them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from fleet import FakeFleet
from lakes import ship_logs
from shipping import write_log
from waiting import PATIENCE, wait_until

from scorer.config.problems import InvalidSettingsError
from scorer.log.source.indexed import IndexedLogs
from scorer.release.effective import effective
from scorer.release.fleet import Fleet, Member
from scorer.release.fleet.logs import record_source, table_access
from scorer.release.open import open_service
from scorer.release.settings import PlatformFile

CHECKPOINT = '[checkpoints."fraud.checkout"]\nalias = "fraud-checkout@live"\n'


def parsed(text: str, base: Path) -> PlatformFile:
    return PlatformFile.parse(text + CHECKPOINT, base=base)


def member(name: str, port: int, more: str = "") -> str:
    return f'[[fleet]]\nname = "{name}"\ncontrol = "127.0.0.1:{port}"\n{more}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[tables]\nurls = ["lake"]\n' + member("a", 1, 'log = "logs/a"\nshipped_as = "host-1"'),
            'server "a" has both a log and a table (shipped_as); its records would count twice',
        ),
        (member("a", 1, 'shipped_as = "host-1"'), 'has shipped_as = "host-1", but [tables] has no urls'),
        (
            '[tables]\nurls = ["lake"]\n' + member("a", 1, 'shipped_as = "b"') + member("b", 2),
            'two servers have the shipped_as "b"',
        ),
        ('[tables]\nurls = ["lake", "delta:lake/"]\n', "is given twice; name each table once"),
        ('[tables]\nurls = ["delta:"]\n', "is no place of tables; write [delta] url"),
        ('[tables]\nurls = ["lake"]\n[tables.options]\nKEY = "$NO_SUCH_VARIABLE"\n', "NO_SUCH_VARIABLE"),
        ('[tables]\nurl = "lake"\n', "tables.url"),
    ],
)
def test_settings_that_contradict_each_other_are_rejected_in_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InvalidSettingsError) as error:
        parsed(text, tmp_path)
    [line] = [line for line in str(error.value).splitlines() if message in line]
    assert line


def test_relative_directories_begin_at_the_settings_and_secrets_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_SECRET", "s3cr3t")
    settings = parsed(
        '[tables]\nurls = ["lake", "s3://decisions/lake/"]\n'
        '[tables.options]\nAWS_REGION = "us-east-1"\nAZURE_KEY = "$LAKE_SECRET"\n',
        tmp_path,
    )
    assert settings.tables.urls == [str(tmp_path / "lake"), "s3://decisions/lake"]
    shown = {(one.section, one.key): one.value for one in effective(settings)}
    assert shown["tables", "options"] == "AWS_REGION is set, AZURE_KEY is set"
    access = table_access(settings)
    assert access is not None
    assert access.settings.options == {"AWS_REGION": "us-east-1", "AZURE_KEY": "s3cr3t"}
    assert table_access(parsed("", tmp_path)) is None


def test_the_servers_of_tables_have_the_names_of_the_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = {}
    for at, name in enumerate(("host-1", "pool-1", "gone")):
        monkeypatch.setattr("logs.LOG", bytes([at]) * 16)
        logs[name] = write_log(tmp_path / name, [20])
    ship_logs(logs, tmp_path / "lake", records=100)
    settings = parsed(
        '[platform]\ndata_dir = "data"\n[tables]\nurls = ["lake"]\nrefresh_seconds = 0\n'
        + member("checkout-1", 1, 'shipped_as = "host-1"')
        + member("pool-1", 2, 'role = "shadow"'),
        tmp_path,
    )
    fleet = Fleet([Member(one.name, one.control, one.role, one.log) for one in settings.fleet])
    source = record_source(settings, fleet)
    try:
        wait_until(lambda: source.logs and not source.problems, "all files to be indexed")
        # The log of the pool comes last, and that of a server that is gone is read.
        assert [log.name for log in source.logs] == ["checkout-1", "gone", "pool-1"]
        assert {name for name, _ in source.of_decision("d1").entries} == {"checkout-1", "gone", "pool-1"}
    finally:
        source.close()
        fleet.close()
    assert isinstance(record_source(parsed("", tmp_path), fleet), IndexedLogs)


def test_a_storage_that_does_not_answer_delays_no_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = parsed(
        '[platform]\ndata_dir = "data"\ntick_ms = 10\n[tables]\nurls = ["lake"]\n' + member("a", 1), tmp_path
    )
    fleet = FakeFleet(
        [Member("a", "")],
        checkpoints={"fraud.checkout": "score"},
        answer={"fraud.checkout": "sha256:" + 64 * "0"},
    )
    platform = open_service(settings, fleet=fleet)
    hangs, answers, advanced = threading.Event(), threading.Event(), threading.Event()

    def collect() -> None:
        hangs.set()
        assert answers.wait(PATIENCE)

    def advance() -> None:
        if hangs.is_set():
            advanced.set()

    monkeypatch.setattr(platform.service.readouts, "collect", collect)
    monkeypatch.setattr(platform.runner, "tick", advance)
    try:
        platform.start()
        assert hangs.wait(PATIENCE)
        assert advanced.wait(PATIENCE)
    finally:
        answers.set()
        platform.close()
