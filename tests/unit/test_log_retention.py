"""Tests of retention by command: what is removed, what stays and why, and that readers find no gap."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from logs import write_segment
from servers import scorer_in_process

from scorer.errors import LogError
from scorer.log import LogReader, mark_shipped, prune
from scorer.v1.log_pb2 import DecisionRecord, LogRecord

PER_SEGMENT = 10


def _log(directory: Path, segments: int = 5) -> Path:
    """Write a log of sealed segments of ten decisions.

    Each segment is an hour later than the previous one.
    """
    directory.mkdir()
    for number in range(1, segments + 1):
        first = (number - 1) * PER_SEGMENT + 1
        payloads = [
            LogRecord(decision=DecisionRecord(decision_id=str(sequence))).SerializeToString()
            for sequence in range(first, first + PER_SEGMENT)
        ]
        write_segment(directory, number, first, payloads)
    (directory / "LOCK").touch()
    return directory


def _first_sequence(log: Path) -> int:
    reader = LogReader(log)
    sequences = [sequence for sequence, _ in reader.payloads()]
    assert sequences == list(range(sequences[0], sequences[-1] + 1))
    assert not reader.findings
    return sequences[0]


def test_no_segment_is_removed_before_it_is_marked_as_shipped(tmp_path: Path) -> None:
    log = _log(tmp_path / "log")
    refused = scorer_in_process("log", "prune", "--log", str(log), "--mb", "0", "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["blocked"] == "not_shipped"
    assert _first_sequence(log) == 1
    marked = scorer_in_process("log", "shipped", "--log", str(log), "--through", "25")
    assert marked.returncode == 0 and "up to sequence 25" in marked.stdout
    done = scorer_in_process("log", "prune", "--log", str(log), "--mb", "0")
    assert done.returncode == 1 and "2 segments" in done.stdout and "not marked as shipped" in done.stdout
    assert _first_sequence(log) == 21
    assert mark_shipped(log, 3) == 26, "the mark never decreases"


def test_a_dry_run_removes_nothing_and_an_option_lifts_the_rule(tmp_path: Path) -> None:
    log = _log(tmp_path / "log")
    dry = scorer_in_process("log", "prune", "--log", str(log), "--mb", "0", "--unshipped", "--dry-run")
    assert dry.returncode == 0 and "3 segments" in dry.stdout and "would be removed" in dry.stdout
    assert _first_sequence(log) == 1
    done = prune(log, max_bytes=0, unshipped=True)
    assert (len(done.removed), done.segments, done.first_sequence, done.blocked) == (3, 2, 31, None)
    assert _first_sequence(log) == 31


def test_the_segments_of_an_active_reader_are_kept(tmp_path: Path) -> None:
    log = _log(tmp_path / "log")
    reader = LogReader(log)
    payloads = reader.payloads()
    next(payloads)
    del payloads
    reader_of_all = LogReader(log)
    assert prune(log, max_bytes=0, unshipped=True).blocked == "being_read"
    assert len(list(reader_of_all.payloads())) == 5 * PER_SEGMENT
    list(reader.payloads())
    assert prune(log, max_age=timedelta(days=1), unshipped=True).blocked is None
    assert prune(log, max_bytes=0, unshipped=True).blocked is None


def test_an_error_of_bad_input_is_one_line(tmp_path: Path) -> None:
    nothing = scorer_in_process("log", "prune", "--log", str(tmp_path))
    assert nothing.returncode == 2 and "no limit is given" in nothing.stderr
    with pytest.raises(LogError, match="holds no segments"):
        prune(tmp_path, max_bytes=0)
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "SHIPPED").write_text("not a number")
    assert mark_shipped(tmp_path / "log", 7) == 7, "a damaged mark is treated as missing"
