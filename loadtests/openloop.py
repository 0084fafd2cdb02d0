"""The load generator on its own core, and a server under load for rate searches."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from loadtests.options import Options
from scorer import bridge
from scorer.loadtest.loaded import LoadedServer
from scorer.loadtest.ratesearch import Found, RateSearch
from scorer.loadtest.report import LoadProgress, Report

# Number of searches of each rate, for our servers and peers.
SEARCHES: Final = 3


def cores() -> tuple[int, int]:
    """Return the core of the server and the core of the generator.

    Raises:
        RuntimeError: There is only one core.
    """
    usable = _BEFORE or sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise RuntimeError("server and generator need a core each, but this process may use only one")
    return usable[0], usable[-1]


_BEFORE: list[int] = []


@contextmanager
def on_generators_core() -> Iterator[None]:
    """Keep this process and the threads that it starts on the generator's core."""
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
    """A method with encoded requests, which are sent in turn."""

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
        methods: Methods to call.
        protocol: "grpc" or "http".
        metadata: Headers of every request, if there is one caller.
        connections: Number of connections of each caller.
        more: Further settings of the generator by name.
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
        progress: Callable[[LoadProgress], None] | None = None,
        **settings: Any,
    ) -> Report:
        """Send at a rate for some seconds. The given settings override those of the load."""
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
                progress(LoadProgress.model_validate_json(text))

        payloads = [list(method.requests) for method in self.methods]
        return Report.model_validate_json(bridge.run_load(json.dumps(config), payloads, tell))


def under_load(load: Load, *, warmup_seconds: float = 0.3) -> LoadedServer:
    """Return a running server under a load, for `RateSearch`.

    Args:
        load: Requests and target.
        warmup_seconds: Length of the warm-up before each window, which is not counted.
    """
    return LoadedServer(
        lambda rate, seconds, warmup: load.run(rate, seconds, warmup_seconds=warmup), warmup_seconds
    )


def capacity(load: Load, threshold_ms: float, *, start: float, options: Options) -> list[Found]:
    """Search three times for the highest rate whose p99 is within a threshold.

    Args:
        load: Load on the server.
        threshold_ms: Bound of the p99 in milliseconds.
        start: First rate in requests per second.
        options: Options of the run. A smoke run searches once, and its result is not valid.

    Returns:
        The result of each search; the figure is their median.
    """
    if options.smoke:
        # A few windows may find no rate, but the next steps need one.
        rate = new_search(load, start=start, options=options).highest(threshold_ms).rate
        return [Found(rate or start / 4, generator_bound=False)]
    found: list[Found] = []
    for _ in range(SEARCHES):
        search = new_search(load, start=start, options=options)
        found.append(search.highest(threshold_ms, near=found[-1].rate or None if found else None))
    return found


# A coarser search with fewer and shorter windows: half a minute for three thresholds.
SHORT: Final[dict[str, Any]] = {
    "seconds": 0.5,
    "requests": 300,
    "longest": 3.0,
    "step": 0.04,
    "repeats": 3,
    "most_seconds": 9.0,
    "saturating_windows": 2,
    "saturating_seconds": 1.0,
}
_SMOKE: Final[dict[str, Any]] = {
    "seconds": 0.3,
    "repeats": 1,
    "most_windows": 4,
    "saturating_windows": 1,
    "saturating_seconds": 0.3,
}


def new_search(load: Load, *, start: float, options: Options) -> RateSearch:
    """Return a new search without windows."""
    if options.smoke:
        return RateSearch(under_load(load, warmup_seconds=0.1), start, **_SMOKE)
    if options.thorough:
        return RateSearch(under_load(load), start)
    return RateSearch(under_load(load, warmup_seconds=0.2), start, **SHORT)
