"""The structured log: one JSON object per line on stderr.

Every line has ``ts`` (UTC), ``level`` (info, warning or error) and ``event``, then the
event's own fields. What the data plane reports, and what libraries say through
``logging`` and ``warnings``, comes out in the same form.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson

PRINCIPAL: ContextVar[str | None] = ContextVar("PRINCIPAL", default=None)
"""Who makes the call that is being served; named in every event of it."""


class EventStream(Protocol):
    """Output that event lines are written to."""

    def write(self, data: bytes, /) -> object:
        """Write one or more whole lines."""

    def flush(self) -> object:
        """Hand buffered lines to the operating system."""


class EventLog:
    """Writes events. Safe to call from any thread.

    Args:
        stream: Where to; default: stderr.
        now: Seconds since the Unix epoch.
    """

    def __init__(self, stream: EventStream | None = None, now: Callable[[], float] = time.time) -> None:
        self._stream: EventStream = stream or sys.stderr.buffer
        self._now = now
        self._lock = threading.Lock()
        self._pending: Callable[[], Sequence[str]] = tuple

    def follow(self, pending: Callable[[], Sequence[str]]) -> None:
        """Passes on what another source has collected: before each own event, so that the order is right."""
        self._pending = pending

    def info(self, event: str, **fields: Any) -> None:
        """The expected course of things."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something works less well than it should."""
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log an event about something that does not work."""
        self._write("error", event, fields)

    def defect(self, event: str, error: BaseException, **fields: Any) -> None:
        """Log an unexpected exception with its traceback, on one line."""
        trace = "".join(traceback.format_exception(error))
        fields = {**fields, "error": f"{type(error).__name__}: {error}", "traceback": trace}
        self._write("error", event, fields)

    def forward(self, line: str) -> None:
        """Passes on an event of the data plane, its time written as everywhere else."""
        try:
            fields = orjson.loads(line)
            record = {key: fields.pop(key) for key in ("ts", "level", "event")}
            record["ts"] = _timestamp(float(record["ts"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            self.warning("unreadable_event", line=line)
            return
        self._emit({**record, **fields})

    def take_over_logging(self) -> None:
        """Sends what libraries log or warn about the same way."""
        root = logging.getLogger()
        root.handlers = [_Handler(self)]
        root.setLevel(logging.WARNING)
        logging.captureWarnings(capture=True)

    def forward_pending(self) -> None:
        """Passes on what the followed source has collected since the last time."""
        for line in self._pending():
            self.forward(line)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        self.forward_pending()
        principal = PRINCIPAL.get()
        if principal is not None:
            fields = {**fields, "principal": principal}
        self._emit({"ts": _timestamp(self._now()), "level": level, "event": event, **fields})

    def _emit(self, record: dict[str, Any]) -> None:
        line = orjson.dumps(record, default=str, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)
        # A closed or full stderr must never stop the server.
        with self._lock, suppress(OSError, ValueError):
            self._stream.write(line)
            self._stream.flush()


class _Handler(logging.Handler):
    def __init__(self, events: EventLog) -> None:
        super().__init__()
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info and record.exc_info[1]:
            fields["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        level = self._events.error if record.levelno >= logging.ERROR else self._events.warning
        level("library", **fields)


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
