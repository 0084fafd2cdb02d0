"""APScheduler under a clock that a test sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, tzinfo
from typing import Any
from unittest.mock import patch


class Clock:
    """The time that APScheduler sees."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def go(self, schedule: Any, now: datetime) -> None:
        """Sets it and wakes the scheduler, which is asleep by the real clock."""
        self.now = now
        schedule.scheduler.wakeup()


@contextmanager
def frozen(now: datetime) -> Iterator[Clock]:
    """Replaces `datetime.now` where APScheduler and the schedule ask for it."""
    clock = Clock(now)

    class Frozen(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return clock.now.astimezone(tz)

    places = [
        "apscheduler.schedulers.base.datetime",
        "apscheduler.executors.base.datetime",
        "scorer.learn.schedule.scheduler.datetime",
    ]
    patches = [patch(place, Frozen) for place in places]
    for one in patches:
        one.start()
    try:
        yield clock
    finally:
        for one in patches:
            one.stop()
