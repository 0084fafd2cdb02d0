"""The generator on a core of its own, and searches with it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from scorer import bridge
from scorer.loadtest.report import Progress, Report

# A generator this late at its p99 is itself what is being measured.
MOST_LAG_US: Final = 1_000
# A probe whose p99 is this many times the promise after a second has said enough.
HOPELESS: Final = 20
MISSES: Final = 0.01


def cores() -> tuple[int, int]:
    """One for the server, another for the generator.

    Raises:
        RuntimeError: There is one core only.
    """
    usable = _BEFORE or sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise RuntimeError("server and generator need a core each, and there is one; nothing was measured")
    return usable[0], usable[-1]


_BEFORE: list[int] = []


@contextmanager
def on_generators_core() -> Iterator[None]:
    """This process, threads that it starts included, keeps to the generator's core."""
    before = sorted(os.sched_getaffinity(0))
    _BEFORE[:] = before
    os.sched_setaffinity(0, {cores()[1]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        _BEFORE.clear()


@dataclass(frozen=True, kw_only=True)
class Method:
    """What to call: encoded requests, sent in turn."""

    name: str
    path: str
    requests: Sequence[bytes]
    reply: str = "opaque"
    fresh_id: bool = False
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """A load without its rate.

    Attributes:
        target: "host:port" or "unix:/path".
        methods: What to call.
        protocol: "grpc" or "http".
        metadata: Headers of every request, where there is one caller.
        connections: Of each caller.
        more: Further settings of the generator, by their names there.
    """

    target: str
    methods: Sequence[Method]
    protocol: str = "grpc"
    metadata: Mapping[str, str] = field(default_factory=dict)
    connections: int = 4
    more: Mapping[str, Any] = field(default_factory=dict)

    def run(
        self,
        rate: float,
        seconds: float,
        *,
        progress: Callable[[Progress], None] | None = None,
        **settings: Any,
    ) -> Report:
        """Sends at a rate and reports; settings named here win over the load's."""
        config = {
            "target": self.target,
            "protocol": self.protocol,
            "rate": rate,
            "seconds": seconds,
            "warmup_seconds": 0.5,
            "connections": self.connections,
            "timeout_ms": 2000.0,
            "methods": [
                {
                    "name": method.name,
                    "path": method.path,
                    "weight": method.weight,
                    "reply": method.reply,
                    "fresh_id": method.fresh_id,
                }
                for method in self.methods
            ],
            **self.more,
            **settings,
        }
        if self.metadata and not config.get("callers"):
            config["callers"] = [{"name": "all", "load": [1.0], "metadata": dict(self.metadata)}]

        def tell(text: str) -> None:
            if progress is not None:
                progress(Progress.model_validate_json(text))

        payloads = [list(method.requests) for method in self.methods]
        return Report.model_validate_json(bridge.run_load(json.dumps(config), payloads, tell))


@dataclass(frozen=True)
class Probe:
    """One rate tried.

    Attributes:
        rate: Requests per second that were due.
        p99_ms: Of the answered ones; infinite where it was given up as hopeless.
        holds: At most one request in a hundred missed, or was answered by a fallback.
        lag_us: The generator's own p99 lag.
    """

    rate: float
    p99_ms: float
    holds: bool
    lag_us: float

    @property
    def generator_bound(self) -> bool:
        """The generator could not keep its schedule: the rate says nothing about the server."""
        return self.lag_us > MOST_LAG_US


class _HopelessError(Exception):
    def __init__(self, reached: Progress) -> None:
        super().__init__()
        self.lag_us = float(reached.send_lag_p99_us)


def probe(load: Load, rate: float, seconds: float, sla_ms: float) -> Probe:
    """Tries a rate; ends early where the queue has plainly run away."""
    worst = sla_ms * 1000 * HOPELESS

    def look(reached: Progress) -> None:
        if reached.latency_us.p99 > worst or (not reached.warming_up and not reached.finished):
            raise _HopelessError(reached)

    try:
        report = load.run(rate, seconds, sla_ms=sla_ms, progress=look)
    except _HopelessError as hopeless:
        return Probe(rate, float("inf"), holds=False, lag_us=hopeless.lag_us)
    # A fallback is an answer in time, but not one that a capacity could be made of.
    holds = report.misses + sum(report.fallbacks.values()) <= MISSES * report.requests
    return Probe(rate, report.latency_us.p99 / 1000, holds, float(report.send_lag_us.p99))


def highest_rate(
    load: Load,
    sla_ms: float,
    *,
    start: float,
    seconds: float = 3.0,
    precision: float = 0.05,
    confirm: float = 10.0,
    told: Callable[[Probe], None] = lambda _: None,
) -> tuple[Probe, list[Probe]]:
    """The highest rate at which p99 keeps the promise: doubled, halved in between, confirmed by a long run.

    Returns:
        The confirming probe (not holding, at rate 0, where no rate held), and every probe.
    """
    tried: list[Probe] = []

    def attempt(rate: float, length: float) -> Probe:
        found = probe(load, rate, length, sla_ms)
        tried.append(found)
        told(found)
        return found

    good, bad, rate = 0.0, float("inf"), start
    while not bad - good <= precision * good and len(tried) < 16:
        if attempt(rate, seconds).holds:
            good = rate
        else:
            bad = rate
        if good == 0.0 and bad < start / 64:
            break
        rate = bad / 2 if good == 0.0 else good * 2 if bad == float("inf") else (good + bad) / 2
    while good > 0:
        found = attempt(good, confirm)
        if found.holds:
            # If the next higher rate failed because of the generator, the server's limit was not reached.
            failed = min((it for it in tried if not it.holds), key=lambda it: it.rate, default=found)
            return replace(found, lag_us=max(found.lag_us, failed.lag_us)), tried
        good = good * (1 - precision) if good > start / 64 else 0.0
    return Probe(0.0, float("inf"), holds=False, lag_us=0.0), tried
