"""Tests of the join over several logs: logs that are gone, behind, set back or replaced, and its memory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from joining import POINT, SETTINGS, Maker, counts, known, outcome, run
from logs import write_segment

from scorer.errors import LogError
from scorer.learn.join import cache as cache_module
from scorer.learn.join import reading
from scorer.learn.join.cache import CURSOR, LogColumns
from scorer.log import BundleShelf, erase
from scorer.log.proof import KNOWN
from scorer.log.source import directories


@pytest.fixture(scope="module")
def make(built_bundles: dict[str, Path]) -> Maker:
    return Maker(built_bundles["action-1"])


@pytest.fixture(scope="module")
def shelf(built_bundles: dict[str, Path]) -> BundleShelf:
    return BundleShelf([built_bundles["action-1"]])


@pytest.fixture
def logs(tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two servers; each has the outcome of the other's decision."""
    for place, (own, other) in enumerate((("a", "b"), ("b", "a"))):
        monkeypatch.setattr("logs.LOG", bytes([place + 1]) * 16)
        write_segment(tmp_path / f"server-{own}", 1, 1, [make.decision(own, 0), outcome(other, 1)])
    return [tmp_path / "server-a", tmp_path / "server-b"]


def example(joined: Any, name: str) -> tuple[str, ...]:
    return next((one.examples for one in joined.findings if one.name == name), ())


SETTLED, MISSING = ("SETTLED", 1.0), ("MISSING", None)


@pytest.mark.parametrize("checkpoint", [None, POINT])
def test_an_outcome_is_joined_whichever_log_it_is_in(
    logs: list[Path], shelf: BundleShelf, checkpoint: str | None
) -> None:
    joined = run(logs, shelf, 48, checkpoint=checkpoint)
    assert known(joined) == {"a": SETTLED, "b": SETTLED}
    assert counts(joined) == {"one action in a week": 1}


def test_a_server_that_is_gone_does_not_stop_the_join_and_is_named(
    logs: list[Path], shelf: BundleShelf, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    before = run(logs, shelf, 48, checkpoint=POINT, cache=cache)
    shutil.rmtree(logs[1])
    # What was read of it is used. Without a cache, the outcome and the decision that it had are missing.
    for _ in range(2):
        stored = run(logs, shelf, 48, checkpoint=POINT, cache=cache)
        assert stored.experience.digest() == before.experience.digest()
        [text] = example(stored, "unreadable log")
        assert text.startswith(f"{logs[1]}: decision log {logs[1]}: no such directory")
        assert text.endswith("records before 3, which were read earlier, are used")
    fresh = run(logs, shelf, 48, checkpoint=POINT)
    assert known(fresh) == {"a": MISSING}
    assert example(fresh, "unreadable log")[0].endswith("none of it is used")
    assert counts(fresh)["outcome without decision"] == 1
    assert "unreadable log" in {one.name for one in fresh.findings if one.effect == "kept"}


def test_a_log_that_fails_while_it_is_read_keeps_what_was_stored(
    logs: list[Path], shelf: BundleShelf, tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    run(logs, shelf, 48, checkpoint=POINT, cache=cache)
    monkeypatch.setattr("logs.LOG", bytes([2]) * 16)
    write_segment(logs[1], 2, 3, [make.decision("c", 1), make.decision("d", 1)])
    of, table_of = SETTINGS.model_copy(update={"rows": 1}), directories.table_of

    def fails(kind: Any, records: Any) -> Any:
        if records[0][1].decision_id == "d":
            raise OSError(5, "Input/output error")
        return table_of(kind, records)

    with monkeypatch.context() as broken:
        broken.setattr(directories, "table_of", fails)
        joined = run(logs, shelf, 48, of, checkpoint=POINT, cache=cache)
    assert set(known(joined)) == {"a", "b"}, "half of a pass is not used"
    assert "Input/output error" in example(joined, "unreadable log")[0]
    # A cache that cannot be written is no fault of the log.
    with monkeypatch.context() as broken:
        broken.setattr(LogColumns, "_write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(OSError, match="No space left"):
            run(logs, shelf, 48, of, checkpoint=POINT, cache=cache)
    assert set(known(run(logs, shelf, 48, of, checkpoint=POINT, cache=cache))) == {"a", "b", "c", "d"}


def test_the_join_fails_if_no_log_can_be_read(logs: list[Path], shelf: BundleShelf) -> None:
    for log in logs:
        shutil.rmtree(log)
    with pytest.raises(LogError, match=r"server-a.*; .*server-b"):
        run(logs, shelf, 48)


def test_a_log_that_is_behind_is_named(logs: list[Path], shelf: BundleShelf, make: Maker) -> None:
    write_segment(logs[1], 2, 3, [make.decision("c", 2)])
    assert "lagging log" not in counts(run(logs, shelf, 48)), "an hour is no lag"
    write_segment(logs[1], 3, 4, [outcome("c", 2.5, proof=KNOWN)])
    joined = run(logs, shelf, 48)
    assert example(joined, "lagging log") == (f"{logs[0]}: 1.5 hours",)
    # What came after the moment says nothing about it.
    assert "lagging log" not in counts(run(logs, shelf, 2))
    assert "lagging log" not in counts(run(logs[:1], shelf, 48))


@pytest.mark.parametrize("same_log", [True, False], ids=["an older copy of its log", "a new log"])
def test_what_a_server_lost_is_kept_and_named(
    logs: list[Path],
    shelf: BundleShelf,
    tmp_path: Path,
    make: Maker,
    monkeypatch: pytest.MonkeyPatch,
    same_log: bool,
) -> None:
    cache = tmp_path / "cache"
    question: dict[str, Any] = {"checkpoint": POINT, "cache": cache}
    before = run(logs, shelf, 48, **question)
    monkeypatch.setattr("logs.LOG", bytes([2 if same_log else 9]) * 16)
    shutil.rmtree(logs[1])
    write_segment(logs[1], 1, 1, [make.decision("b", 0)] if same_log else [])
    lost = 1 if same_log else 2
    joined = run(logs, shelf, 48, **question)
    assert joined.experience.digest() == before.experience.digest()
    found = {one.name: one for one in joined.findings}["log replaced or set back"]
    assert (found.count, found.examples) == (lost, (str(logs[1]),))
    # It goes on: its next records have numbers that earlier records had.
    write_segment(logs[1], 2, 2 if same_log else 1, [make.decision("c", 1), outcome("c", 1, 0.0)])
    joined = run(logs, shelf, 48, **question)
    assert known(joined) == {"a": SETTLED, "b": SETTLED, "c": ("SETTLED", 0.0)}
    assert counts(joined)["log replaced or set back"] == lost
    # After 90 days, what it lost is no longer used.
    hour = 24 * (cache_module.LOST_DAYS + 1)
    write_segment(logs[1], 3, 4 if same_log else 3, [make.decision("late", hour)])
    joined = run(logs, shelf, hour + 48, **question)
    assert "log replaced or set back" not in counts(joined)
    assert set(known(joined)) == ({"a", "b", "c", "late"} if same_log else {"a", "c", "late"})


@pytest.mark.parametrize("decided", [[0.0], []], ids=["with a decision", "alone"])
def test_a_lost_note_is_kept_as_long_as_lost_rows(
    logs: list[Path], shelf: BundleShelf, tmp_path: Path, make: Maker, decided: list[float]
) -> None:
    """A note has no time: it counts with the rows beside it, or else with the first ones after the loss."""
    question: dict[str, Any] = {"checkpoint": POINT, "cache": tmp_path / "cache"}
    payloads = [make.decision("b", hour) for hour in decided]

    def write(number: int, first: int, records: list[bytes]) -> None:
        write_segment(logs[1], number, first, records)

    shutil.rmtree(logs[1])
    write(1, 1, [*payloads, b""])
    assert counts(run(logs, shelf, 48, **question))["unknown record"] == 1
    shutil.rmtree(logs[1])
    write(1, 1, payloads)
    assert counts(run(logs, shelf, 48, **question))["unknown record"] == 1
    write(2, 1 + len(payloads), [make.decision("c", 1)])
    assert counts(run(logs, shelf, 48, **question))["unknown record"] == 1
    hour = 24 * (cache_module.LOST_DAYS + 1)
    write(3, 2 + len(payloads), [make.decision("late", hour)])
    joined = run(logs, shelf, hour + 48, **question)
    assert "unknown record" not in counts(joined)
    assert {"c", "late"} <= set(known(joined))


def test_an_erasure_removes_what_was_stored(logs: list[Path], shelf: BundleShelf, tmp_path: Path) -> None:
    question: dict[str, Any] = {"checkpoint": POINT, "cache": tmp_path / "cache"}
    assert set(known(run(logs, shelf, 48, **question))) == {"a", "b"}
    erase(logs[1], "shopper-b")
    assert set(known(run(logs, shelf, 48, **question))) == {"a"}
    shutil.rmtree(logs[1])
    assert set(known(run(logs, shelf, 48, **question))) == {"a"}


def test_the_same_log_in_two_directories_counts_once(logs: list[Path], shelf: BundleShelf) -> None:
    copy = logs[0].with_name("copy")
    shutil.copytree(logs[0], copy)
    joined = run([*logs, copy], shelf, 48)
    assert joined.experience.digest() == run(logs, shelf, 48).experience.digest()
    assert example(joined, "log given twice") == (f"{logs[0]}, {copy}",)


def test_the_findings_about_bytes_name_their_log(logs: list[Path], shelf: BundleShelf, make: Maker) -> None:
    write_segment(logs[1], 2, 3, [b"", outcome("a", 2, 0.0)])
    data = bytearray((sorted(logs[0].glob("*.seg"))[0]).read_bytes())
    data[200] ^= 4
    sorted(logs[0].glob("*.seg"))[0].write_bytes(bytes(data))
    joined = run(logs, shelf, 48)
    assert example(joined, "damaged segment")[0].startswith(f"{logs[0]}: ")
    assert example(joined, "unknown record") == (f"{logs[1]}: sequence 3",)
    [conflict] = example(joined, "conflicting outcomes")
    assert conflict.endswith(f"1 (sequence 2 of {logs[1]}), later 0 (sequence 4 of {logs[1]})")
    assert run(logs, shelf, 48, checkpoint=POINT).findings == joined.findings


def test_the_columns_of_an_earlier_version_are_removed(
    logs: list[Path], shelf: BundleShelf, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    (cache / "replica-1").mkdir(parents=True)
    for name in (CURSOR, "decisions-1-2.parquet", "replica-1/outcomes-1-2.parquet"):
        (cache / name).write_bytes(b"{}")
    run(logs, shelf, 48, checkpoint=POINT, cache=cache)
    assert {path.name.rpartition("-")[0][-8:] for path in cache.iterdir()} == {"server-a", "server-b"}


@pytest.mark.parametrize("stored", [True, False])
def test_the_rows_in_memory_are_bounded_for_each_log(
    tmp_path: Path,
    shelf: BundleShelf,
    make: Maker,
    monkeypatch: pytest.MonkeyPatch,
    stored: bool,
) -> None:
    """Counted after every batch, over all logs: fewer than a part of each kind, and one batch."""
    part, rows = 20, 6
    monkeypatch.setattr(cache_module, "PART_ROWS", part)
    held: list[int] = []
    every: list[LogColumns] = []

    class Counted(LogColumns):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            every.append(self)

        def add(self, kind: str, table: Any) -> None:
            super().add(kind, table)
            waiting = [max(sum(map(len, one._new[of])) for of in one._new) for one in every]
            held.append(max(waiting))
            # A log whose pass has ended keeps less than a part, whatever follows.
            assert all(count < part for count in waiting)

    monkeypatch.setattr(reading, "LogColumns", Counted)
    paths = []
    for place in range(3):
        monkeypatch.setattr("logs.LOG", bytes([place + 1]) * 16)
        names = [f"d{place}-{at}" for at in range(100)]
        records = [one for name in names for one in (make.decision(name, 0), outcome(name, 1))]
        write_segment(tmp_path / f"log-{place}", 1, 1, records)
        paths.append(tmp_path / f"log-{place}")
    of = SETTINGS.model_copy(update={"rows": rows})
    more: dict[str, Any] = {"cache": tmp_path / "cache"} if stored else {}
    joined = run(paths, shelf, 48, of, checkpoint=POINT, **more)
    assert len(joined.experience) == 300 and len(every) == 3
    assert 0 < max(held) < part
    assert max(held) > part / 2, "the count sees what is held"
    assert not any(one._temporary and Path(one._temporary.name).exists() for one in every)
