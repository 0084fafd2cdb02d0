"""The process of `scorer features feed`: one worker per target, metrics and progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

from scorer.errors import FeedError, ScorerError
from scorer.feed.metrics import FeedMetrics
from scorer.feed.settings import FeedSettings
from scorer.feed.targets import RedisTarget, ServerTarget
from scorer.feed.worker import FeedWorker
from scorer.processes import say_with_time, stopped_by_signals
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
    say = say or say_with_time
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
        stack.enter_context(stopped_by_signals(stop))
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
