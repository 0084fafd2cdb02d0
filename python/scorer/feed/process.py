"""The process of `scorer features feed`: one worker per target, metrics and progress."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from scorer.errors import FeedError, ScorerError
from scorer.feed.metrics import FeedMetrics
from scorer.feed.settings import FeedSettings
from scorer.feed.targets import RedisTarget, ServerTarget
from scorer.feed.worker import FeedWorker
from scorer.ship.listener import MetricsListener


def run(
    settings: FeedSettings, *, once: bool = False, say: Callable[[str], None] | None = None
) -> list[FeedWorker]:
    """Feed all targets until SIGTERM or SIGINT, or once up to the end of the topic.

    Args:
        settings: The settings.
        once: Whether to end when the events that the topic holds are delivered.
        say: Prints a line; default: to stderr.

    Returns:
        The workers, with their counts.

    Raises:
        FeedError: A target takes no events. Other targets have ended after their present delivery.
    """
    say = say or _print
    with ExitStack() as stack:
        metrics, stop = FeedMetrics(), threading.Event()
        targets: list[RedisTarget | ServerTarget] = [
            ServerTarget(address, settings.servers, settings.kafka.format)
            for address in settings.servers.addresses
        ]
        if settings.redis.address is not None:
            targets.append(RedisTarget(settings.redis, settings.privacy, settings.kafka.format))
        workers = [
            FeedWorker(settings, target, stop=stop, metrics=metrics, say=say, once=once) for target in targets
        ]
        stack.enter_context(_stopped_by_signals(stop))
        if settings.feed.metrics_listen and not once:
            listener = MetricsListener(settings.feed.metrics_listen, metrics.text)
            stack.callback(listener.close)
            say(f"metrics: http://{listener.address}/metrics")
        names = " and ".join(target.name for target in targets)
        say(f'feeds topic "{settings.kafka.topic}" to {names}')
        for worker in workers:
            metrics.start(worker.target.name)
            worker.start()
        for worker in workers:
            while worker.is_alive():
                worker.join(0.2)
    for worker in workers:
        counts = ", ".join(f"{count:,} {result}" for result, count in sorted(worker.results.items()))
        say(f"{worker.target.name}: {counts or 'no events'}")
    failed = next((worker for worker in workers if worker.error is not None), None)
    if failed is not None:
        if isinstance(failed.error, ScorerError):
            raise failed.error
        raise FeedError(f"{failed.target.name}: {failed.error}") from failed.error
    return workers


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Set the event on SIGTERM and SIGINT. A second signal ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {line}\n")
    sys.stderr.flush()
