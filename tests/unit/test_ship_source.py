"""Tests of reading a log for a sink: batches, segments, gaps, and logs that must not be continued."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from logs import write_segment
from shipping import SERVER, decision, mixed, outcome, write_log

from scorer.errors import ShipError, SinkUnavailableError
from scorer.log import erase
from scorer.log.shipped.position import ShipPosition
from scorer.ship import source as source_module
from scorer.ship.batch import Batch
from scorer.ship.source import LogSource


def source(log: Path, *, records: int = 1000, size: int = 1 << 20, accept: bool = False) -> LogSource:
    return LogSource(log, SERVER, max_records=records, max_bytes=size, accept_new_log=accept)


def read_all(reader: LogSource, position: ShipPosition | None = None) -> list[Batch]:
    found = []
    while (batch := reader.read(position)) is not None:
        found.append(batch)
        position = batch.end
        assert len(found) < 1000
    return found


def sequences(batches: list[Batch]) -> list[int]:
    return [sequence for batch in batches for sequence in batch.sequences]


def by_segment(batches: list[Batch]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for batch in batches:
        for run, part in batch.slices():
            found.setdefault(run.number, []).extend(batch.sequences[part])
    return found


@pytest.mark.parametrize("records", [1, 3, 4, 100])
def test_every_record_comes_once_with_its_segment(tmp_path: Path, records: int) -> None:
    log = write_log(tmp_path / "log", [5, 1, 7])
    batches = read_all(source(log, records=records))
    assert by_segment(batches) == {1: [1, 2, 3, 4, 5], 2: [6], 3: list(range(7, 14))}
    assert [payload for batch in batches for payload in batch.payloads] == [mixed(n) for n in range(1, 14)]
    assert all(len(batch) <= records for batch in batches)
    assert not any(batch.gaps for batch in batches)
    assert batches[-1].end.sequence == 14


def test_a_batch_ends_at_its_size(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", [20])
    batches = read_all(source(log, size=1))
    assert [len(batch) for batch in batches] == [1] * 20


@pytest.mark.parametrize("at", [1, 4, 5, 6, 12])
def test_reading_continues_at_a_position(tmp_path: Path, at: int) -> None:
    log = write_log(tmp_path / "log", [5, 1, 7])
    (first, *_) = read_all(source(log, records=at))
    assert sequences(read_all(source(log), first.end)) == list(range(at + 1, 14))


def test_records_that_are_appended_later_follow(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", [3])
    reader = source(log)
    (batch,) = read_all(reader)
    write_segment(log, 1, 1, [mixed(n) for n in range(1, 6)], sealed=True)
    write_segment(log, 2, 6, [mixed(6)], sealed=False)
    assert sequences(read_all(reader, batch.end)) == [4, 5, 6]


def test_a_directory_without_segments_has_no_records_yet(tmp_path: Path) -> None:
    assert source(tmp_path).read(None) is None


def test_removed_segments_are_a_gap_only_after_the_first_delivery(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", [5, 5, 5])
    (batch,) = read_all(source(log, records=5))[:1]
    for number in (1, 2):
        next(log.glob(f"{number:010}-*.seg")).unlink()
    (first,) = read_all(source(log))
    assert not first.gaps and first.sequences[0] == 11
    (later,) = read_all(source(log), batch.end)
    (gap,) = later.gaps
    assert (gap.first, gap.last, gap.records) == (6, 10, 5)
    assert "records 6 to 10 are not in the log" in str(gap) and "removed" in str(gap)


def test_a_corrupt_middle_is_a_gap_with_its_reason(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", [9, 1])
    path = next(log.glob("0000000001-*.seg"))
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(b"d4")] ^= 1
    path.write_bytes(damaged)
    batches = read_all(source(log))
    (gap,) = [gap for batch in batches for gap in batch.gaps]
    assert (gap.first, gap.last) == (4, 4)
    assert path.name in gap.reason
    assert sequences(batches) == [1, 2, 3, 5, 6, 7, 8, 9, 10]


def test_another_log_is_refused_unless_it_is_accepted(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", [5])
    (batch,) = read_all(source(log))
    other = replace(batch.end, log=batch.end.log + 1)
    with pytest.raises(ShipError, match=f'not the log of server "{SERVER}"') as refused:
        source(log).read(other)
    assert not isinstance(refused.value, SinkUnavailableError)
    accepting = source(log, accept=True)
    assert sequences(read_all(accepting, other)) == [1, 2, 3, 4, 5]
    assert any("replaces" in note for note in accepting.notes)


def test_an_older_state_of_the_log_is_refused(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", [5, 5])
    restored = tmp_path / "restored"
    shutil.copytree(log, restored)
    next(restored.glob("0000000002-*.seg")).unlink()
    (batch,) = read_all(source(log))
    with pytest.raises(ShipError, match="older state") as refused:
        source(restored).read(batch.end)
    assert "\n" not in str(refused.value)


def test_a_restored_log_that_has_gone_on_is_refused(tmp_path: Path) -> None:
    """The restored server wrote a segment of its own with the number of a shipped one."""
    log = write_log(tmp_path / "log", [5, 5])
    (batch,) = read_all(source(log))
    fork = replace(batch.end, segment=batch.end.segment ^ 1)
    with pytest.raises(ShipError, match="older state"):
        source(log).read(fork)


def test_sequences_that_the_log_used_again_are_shipped_from_the_new_segment(tmp_path: Path) -> None:
    """After a loss of power the log continues before records that were shipped."""
    log = write_log(tmp_path / "log", [5, 5])
    (batch,) = read_all(source(log))
    assert batch.end.sequence == 11
    write_segment(log, 3, 9, [decision(90), decision(91)], sealed=False)
    reader = source(log)
    later = read_all(reader, batch.end)
    assert by_segment(later) == {3: [9, 10]}
    assert any("continued at sequence 9" in note for note in reader.notes)
    assert not any(one.gaps for one in later)


def test_a_repair_while_records_are_read_makes_the_source_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that the log writes again to a new segment have that segment."""
    log = write_log(tmp_path / "log", [6])
    synced = []

    def repair(descriptor: int) -> None:
        if not synced:
            write_segment(log, 2, 5, [decision(95), decision(96)], sealed=False)
        synced.append(descriptor)

    monkeypatch.setattr(source_module.os, "fdatasync", repair)
    assert by_segment(read_all(source(log))) == {1: [1, 2, 3, 4], 2: [5, 6]}
    assert synced


def test_records_are_returned_only_after_they_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_log(tmp_path / "log", [5, 2])

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(source_module.os, "fdatasync", fail)
    with pytest.raises(SinkUnavailableError, match="Input/output error"):
        source(log).read(None)
    # The header of segment 2 states that the records of segment 1 are on the device.
    batch = source(log, records=5).read(None)
    assert batch is not None and len(batch) == 5


def test_erased_entities_are_left_out_with_their_outcomes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    payloads = [decision(1, entity="a"), decision(2, entity="b"), outcome(1), outcome(2)]
    write_segment(log, 1, 1, payloads, sealed=False)
    erase(log, "a")
    (batch,) = read_all(source(log))
    assert (list(batch.sequences), batch.erased, batch.end.sequence) == ([2, 4], 2, 5)


def test_an_entity_that_is_erased_later_is_left_out_from_then_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    payloads = [decision(1, entity="a"), decision(2, entity="b"), outcome(1), outcome(2), outcome(1)]
    write_segment(log, 1, 1, payloads, sealed=False)
    reader = source(log, records=2)
    first = reader.read(None)
    assert first is not None and list(first.sequences) == [1, 2]
    erase(log, "a")
    # The outcomes do not hold the entity; their decision was read before it was erased.
    assert sequences(read_all(reader, first.end)) == [4]


def test_a_batch_of_erased_records_alone_moves_the_position(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write_segment(log, 1, 1, [decision(1, entity="a")], sealed=False)
    erase(log, "a")
    batch = source(log).read(None)
    assert batch is not None
    assert (len(batch), batch.erased, batch.end.sequence, list(batch.slices())) == (0, 1, 2, [])


def test_segments_can_be_removed_between_batches(tmp_path: Path) -> None:
    from scorer.log import prune

    log = write_log(tmp_path / "log", [5, 5, 5, 5])
    reader = source(log, records=2)
    reader.read(None)
    held = prune(log, max_bytes=0, unshipped=True)
    assert held.blocked == "being_read"
    reader.forget()
    assert len(prune(log, max_bytes=0, unshipped=True).removed) == 2
