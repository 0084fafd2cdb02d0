"""Measure the cost of observe lanes for live requests: p99 at half of the capacity, with and without lanes.

One server runs on one core, which its lanes share with the requests; the generator runs on another. Rounds
with three lanes, with one of the three in an endless loop, and without lanes take turns in one run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from loadtests.figures import Figures
from loadtests.openloop import Load, capacity, on_generators_core
from loadtests.options import Options
from loadtests.peers import servers
from loadtests.peers.servers import Serving
from loadtests.peers.subject import CHECKPOINT, Subject, subject
from loadtests.rounds import beside_neighbours
from loadtests.sla import Counters
from scorer.loadtest.ratesearch import median_rate

COMMAND: Final = "make bench ARGS=observe"
SLA_MS: Final = 10.0
LANES: Final = 3
ROUND_SECONDS: Final = 1.0
SECONDS: Final = 144.0
# The default share of requests of the platform, and all requests.
SAMPLES: Final = (0.1, 1.0)


def run(figures: Figures, options: Options) -> None:
    """Measure both samples."""
    model = subject()
    seconds = SECONDS if options.seconds == Options.seconds else options.seconds or SECONDS
    if options.smoke:
        seconds = 4.0
    with on_generators_core():
        config = servers.settings(metrics=True, p99_ms=SLA_MS)
        config["log"] = {"dir": "decisions"}
        with servers.rust(
            model, config=config, features=["fault-injection"], SCORER_FAULTS="faults.json"
        ) as serving:
            bench = _Bench(figures, serving, model, options)
            bench.measure_capacity()
            for sample in SAMPLES:
                bench.measure(sample, seconds / len(SAMPLES))


@dataclass(frozen=True)
class _Round:
    kind: str
    p99_us: float
    ends: str


class _Bench:
    def __init__(self, figures: Figures, serving: Serving, model: Subject, options: Options) -> None:
        self.figures, self.serving, self.model, self.options = figures, serving, model, options
        self.load = Load(target=serving.load.target, methods=serving.load.methods, connections=8)
        self.version = 1
        self.rate = 0.0

    def measure_capacity(self) -> None:
        """Search for the highest rate without observe lanes."""
        rate, _ = median_rate(capacity(self.load, SLA_MS, start=4000.0, options=self.options))
        if rate <= 0:
            raise servers.ServerError(f"no rate keeps p99 within {SLA_MS:g} ms")
        self.rate = rate / 2
        _say(f"capacity {rate:,.0f}/s; measured at half of it")

    def measure(self, sample: float, seconds: float) -> None:
        """Measure rounds in turns: no lanes, three lanes, no lanes, three lanes of which one is stuck."""
        turns = 1 if self.options.smoke else max(3, round(seconds / (4 * (ROUND_SECONDS + 1.0))))
        kinds = ("none", "three", "none", "stuck") * turns
        rounds = [self._round(kind, sample) for kind in (*kinds, "none")]
        for kind, words in (("three", "three observe lanes"), ("stuck", "one of three observe lanes stuck")):
            at = [place for place, found in enumerate(rounds) if found.kind == kind]
            with_lanes, without = beside_neighbours([found.p99_us for found in rounds], at)
            self.figures.add(
                name=f"live p99 with {words} of 500×6 / without, sample {sample:g}",
                ours=[one / other for one, other in zip(with_lanes, without, strict=True)],
                unit="×",
                target=1.1,
                command=COMMAND,
                note=f"median of {len(at)} rounds, each by those around it: {median(with_lanes):,.0f} and"
                f" {median(without):,.0f} µs at {self.rate:,.0f} requests/s, half of the capacity of the one"
                f" core that all share; lanes in the last round: {rounds[at[-1]].ends}",
            )

    def _round(self, kind: str, sample: float) -> _Round:
        self._lanes(0 if kind == "none" else LANES, sample, stuck=kind == "stuck")
        before = Counters.of(self.serving)
        report = self.load.run(self.rate, ROUND_SECONDS)
        ends = _ends(before, Counters.of(self.serving))
        _say(f"sample {sample:g}, {kind}: p99 {report.latency_us.p99} µs {ends}")
        return _Round(kind, report.latency_us.p99, ends)

    def _lanes(self, count: int, sample: float, *, stuck: bool = False) -> None:
        """Activate `count` observe lanes. With `stuck`, one of them is in an endless loop."""
        directory = self.serving.process.log.parent
        faults = {"lanes": {f"{CHECKPOINT}/observer-0": "loop"}} if stuck else {}
        _write(directory / "faults.json", faults)
        self.version += 1
        table: dict[str, Any] = servers.lanes(self.model.digest) | {"version": self.version}
        table["observe"] = {
            CHECKPOINT: [
                {"name": f"observer-{number}", "bundle": self.model.digest, "sample": sample}
                for number in range(count)
            ]
        }
        _write(directory / "lanes.json", table)
        os.kill(self.serving.process.pid, signal.SIGHUP)
        deadline = time.monotonic() + 10.0
        while Counters.of(self.serving)["scorer_lane_table"] < self.version:
            if time.monotonic() > deadline:
                raise servers.ServerError(self.serving.process.story())
            time.sleep(0.01)
        # The server reads the faults ten times per second.
        time.sleep(0.3)
        if stuck:
            # The lane enters the loop before the measurement.
            self.load.run(1000.0, 0.2)


def _write(path: Any, content: Any) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content))
    new.rename(path)


def _ends(before: Counters, after: Counters) -> str:
    """Return the shares of the outcomes of the requests offered to lanes."""
    ends = {}
    for name, value in after.values.items():
        if name.startswith("scorer_observe_requests_total{"):
            outcome = name.partition('outcome="')[2].partition('"')[0]
            ends[outcome] = ends.get(outcome, 0.0) + value - before.values.get(name, 0.0)
    whole = sum(ends.values())
    return ", ".join(f"{outcome} {count / whole:.0%}" for outcome, count in ends.items() if count)


def _say(text: str) -> None:
    sys.stdout.write(f"   {text}\n")
    sys.stdout.flush()
