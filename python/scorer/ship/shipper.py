"""The process: one worker per sink, the log's shipped mark, metrics and progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from scorer.errors import LogError, ShipError
from scorer.log.retention import mark_shipped
from scorer.processes import say_with_time, stopped_by_signals
from scorer.ship.lag import lag
from scorer.ship.listener import MetricsListener
from scorer.ship.lock import shipping
from scorer.ship.metrics import ShipMetrics
from scorer.ship.settings import ShipSettings
from scorer.ship.sinks import Sink
from scorer.ship.source import LogSource
from scorer.ship.worker import Worker

_LAG_SECONDS = 5.0
_PROGRESS_SECONDS = 10.0


class ShippedMark:
    """Moves the log's shipped mark to the lowest position of all sinks.

    Args:
        directory: The log's directory.
        sinks: Names of all sinks.
    """

    def __init__(self, directory: Path, sinks: Sequence[str]) -> None:
        self._directory = directory
        self._reached = dict.fromkeys(sinks, 0)
        self._lock = threading.Lock()
        self._mark = 0

    def delivered(self, sink: str, sequence: int) -> None:
        """Note that a sink holds the records below a sequence.

        Raises:
            LogError: The mark cannot be written.
        """
        with self._lock:
            self._reached[sink] = sequence
            lowest = min(self._reached.values())
            if lowest > self._mark:
                self._mark = mark_shipped(self._directory, lowest)


def sinks_of(settings: ShipSettings) -> list[Sink]:
    """Return the sinks that the settings name.

    Raises:
        ShipError: They name none.
    """
    from scorer.ship.delta import DeltaSink
    from scorer.ship.kafka import KafkaSink

    server = settings.ship.server_id
    sinks: list[Sink] = []
    if settings.delta.is_on:
        sinks.append(DeltaSink(settings.delta, server))
    if settings.kafka.is_on:
        sinks.append(KafkaSink(settings.kafka, server))
    if not sinks:
        raise ShipError("no sink is set; set [delta] url or [kafka] servers, or give --delta or --kafka")
    return sinks


def run(
    settings: ShipSettings,
    *,
    once: bool = False,
    accept_new_log: bool = False,
    sinks: Sequence[Sink] | None = None,
    say: Callable[[str], None] | None = None,
) -> list[Worker]:
    """Ship a log until SIGTERM or SIGINT, or once up to its end.

    Args:
        settings: The settings.
        once: Whether to end when the records that the log holds are delivered.
        accept_new_log: Whether the log may be another one than the sinks hold of this server.
        sinks: Sinks to use instead of those of the settings.
        say: Prints a line; default: to stderr.

    Returns:
        The workers, with their counts.

    Raises:
        ShipError: A sink cannot be written. Other sinks have ended after their present delivery.
    """
    own = settings.ship
    say = say or say_with_time
    with ExitStack() as stack:
        stack.enter_context(shipping(own.log))
        chosen = list(sinks) if sinks is not None else sinks_of(settings)
        metrics, stop = ShipMetrics(), threading.Event()
        stack.enter_context(stopped_by_signals(stop))
        if own.metrics_listen and not once:
            listener = MetricsListener(own.metrics_listen, metrics.text)
            stack.callback(listener.close)
            say(f"metrics: http://{listener.address}/metrics")
        mark = ShippedMark(own.log, [sink.name for sink in chosen])
        workers = []
        for sink in chosen:
            metrics.start(sink.name)
            source = LogSource(
                own.log,
                own.server_id,
                max_records=own.flush_rows,
                max_bytes=own.flush_mb << 20,
                accept_new_log=accept_new_log,
            )
            workers.append(
                Worker(
                    source,
                    sink,
                    stop=stop,
                    metrics=metrics,
                    say=say,
                    flush_seconds=own.flush_seconds,
                    retry_seconds=own.retry_seconds,
                    once=once,
                    delivered=mark.delivered,
                )
            )
        say(f'ships "{own.log}" of server "{own.server_id}" to {" and ".join(sink.name for sink in chosen)}')
        for worker in workers:
            worker.start()
        _watch(workers, metrics, say)
    for worker in workers:
        say(_summary(worker))
    failed = next((worker for worker in workers if worker.error is not None), None)
    if failed is not None:
        if isinstance(failed.error, ShipError):
            raise failed.error
        raise ShipError(f"{failed.sink.name}: {failed.error}") from failed.error
    return workers


def _watch(workers: Sequence[Worker], metrics: ShipMetrics, say: Callable[[str], None]) -> None:
    """Measure the lag and print the progress until every worker has ended."""
    progress = _Progress(say)
    measured = time.monotonic()
    while any(worker.is_alive() for worker in workers):
        for worker in workers:
            worker.join(0.2 / len(workers))
        now = time.monotonic()
        if now - measured < _LAG_SECONDS:
            continue
        measured = now
        for worker in workers:
            if worker.sequence is None:
                continue
            try:
                found = lag(worker.directory, worker.sequence)
            except LogError:
                continue  # the worker reports it
            metrics.set("scorer_ship_lag_records", worker.sink.name, found.records)
            metrics.set("scorer_ship_lag_seconds", worker.sink.name, found.seconds)
            progress.show(worker, found.records, found.seconds)


class _Progress:
    """Prints a line per sink at intervals while there is something new."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._shown: dict[str, tuple[float, int]] = {}

    def show(self, worker: Worker, behind: int, seconds: float) -> None:
        at, records = self._shown.get(worker.sink.name, (0.0, 0))
        now = time.monotonic()
        if now - at < _PROGRESS_SECONDS or (records == worker.counts.records and not behind):
            return
        rate = (worker.counts.records - records) / (now - at) if at else 0.0
        self._shown[worker.sink.name] = (now, worker.counts.records)
        self._say(
            f"{worker.sink.name}: {worker.counts.records:,} records, {rate:,.0f}/s, {behind:,} behind "
            f"(oldest {seconds:.1f} s)"
        )


def _summary(worker: Worker) -> str:
    counts = worker.counts
    text = f"{worker.sink.name}: {counts.records:,} records in {worker.sink.commits:,} commits"
    if counts.gap_records:
        text += f", {counts.gap_records:,} lost by the log before"
    if counts.erased:
        text += f", {counts.erased:,} of erased entities left out"
    if counts.retries:
        text += f", {counts.retries:,} retries"
    return f"{text}; delivered up to sequence {max((worker.sequence or 0) - 1, 0):,}"
