"""Tests of the structured log: one JSON object per line for every kind of value."""

from __future__ import annotations

import json
import logging
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import RecordedEvents

from scorer.events import EventLog


@pytest.fixture
def stream() -> RecordedEvents:
    return RecordedEvents()


@pytest.fixture
def events(stream: RecordedEvents) -> EventLog:
    return EventLog(stream, now=lambda: 1_700_000_000.25)


def test_an_event_has_the_documented_form(events: EventLog, stream: RecordedEvents) -> None:
    events.info("swapped", lane_table=3, path=Path("/x"), text='a\nb "c" \x1b[31m')
    assert stream.lines == [
        b'{"ts":"2023-11-14T22:13:20.250Z","level":"info","event":"swapped","lane_table":3,"path":"/x",'
        b'"text":"a\\nb \\"c\\" \\u001b[31m"}\n'
    ]


def test_events_have_levels_and_tracebacks(events: EventLog, stream: RecordedEvents) -> None:
    events.warning("w")
    events.error("e")
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        events.defect("failed", error, checkpoint="c")
    assert [record["level"] for record in stream.all()] == ["warning", "error", "error"]
    defect = stream.all()[-1]
    assert (defect["error"], defect["checkpoint"]) == ("ValueError: two\nlines", "c")
    assert "test_events.py" in defect["traceback"]
    assert stream.lines[-1].count(b"\n") == 1


def test_events_of_the_data_plane_have_the_same_form(events: EventLog, stream: RecordedEvents) -> None:
    events.forward('{"event": "started", "grpc": ["x"], "level": "info", "ts": 1700000000.5}')
    assert stream.lines == [
        b'{"ts":"2023-11-14T22:13:20.500Z","level":"info","event":"started","grpc":["x"]}\n'
    ]


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "5", '{"event": "x"}', '{"ts": "soon", "event": "x"}', '{"ts": null}']
)
def test_an_unreadable_line_is_kept_as_text(events: EventLog, stream: RecordedEvents, line: str) -> None:
    events.forward(line)
    (record,) = stream.all()
    assert (record["event"], record["line"]) == ("unreadable_event", line)


def test_a_closed_stream_raises_no_error() -> None:
    class Closed:
        def write(self, data: bytes, /) -> None:
            raise BrokenPipeError

        def flush(self) -> None:
            raise ValueError("I/O operation on closed file")

    EventLog(Closed()).info("x")


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    logging.captureWarnings(capture=False)
    root.handlers = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("restored_logging")
def test_log_lines_of_libraries_have_the_same_form(events: EventLog, stream: RecordedEvents) -> None:
    events.take_over_logging()
    logging.getLogger("grpc").info("chatter")
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        logging.getLogger("grpc").exception("call %s failed", 7)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    failed, warned = stream.all()
    assert (failed["event"], failed["level"], failed["message"]) == ("library", "error", "call 7 failed")
    assert "boom" in failed["traceback"]
    assert (warned["level"], "old" in warned["message"]) == ("warning", True)


def test_lines_of_many_threads_do_not_mix(stream: RecordedEvents) -> None:
    class Slow(RecordedEvents):
        def write(self, data: bytes, /) -> int:
            half = len(data) // 2
            self.lines.append(data[:half])
            self.lines.append(data[half:])
            return len(data)

    slow = Slow()
    events = EventLog(slow)
    threads = [
        threading.Thread(target=lambda: [events.info("e", number=n) for n in range(100)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([json.loads(line) for line in b"".join(slow.lines).splitlines()]) == 400
