"""Overload: requests are answered within the SLA or rejected in time at every load.

Each part is a load case (loadtests/cases/sla) against `scorer serve` on one core, with the generator on
another. `scorer loadtest --case loadtests/cases/sla/step --rate CAPACITY` runs one of the cases by hand.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from loadtests.figures import ROOT, Figures
from loadtests.openloop import Load, capacity, cores, new_search, on_generators_core, under_load
from loadtests.options import Options
from loadtests.peers import servers
from loadtests.peers.servers import Serving
from loadtests.peers.subject import Subject, heavy, subject
from scorer.loadtest import Report, make_settings, run_load_test
from scorer.loadtest.ratesearch import median_rate
from scorer.loadtest.report import LoadProgress, StepReport, WindowReport
from scorer.loadtest.settings import case_file
from scorer.log import LogReader

COMMAND: Final = "make bench ARGS=sla"
CASES: Final = ROOT / "loadtests/cases/sla"
SLA_MS: Final = 10.0
CANCELLED: Final = 100_000
CHECKPOINT: Final = (
    f'p99_ms = {SLA_MS}\ntier = 0\nmode = "enforce"\nfallback = {{ decision = "review", score = 0.5 }}'
)


def run(figures: Figures, options: Options) -> None:
    """Run every case."""
    if options.quick:
        with on_generators_core():
            quick(figures, options)
        return
    with on_generators_core():
        Bench(figures, options, heavy(trees=100) if options.smoke else heavy(), "heavy model").all()
        Bench(figures, options, subject(), "500×6").small()


def quick(figures: Figures, options: Options) -> None:
    """Measure the answer rate at four times the load as a share of the rate at saturation, in turns."""
    bench = Bench(figures, options, heavy(trees=300), "3,600×8")
    with servers.hosted(bench.it, checkpoint=CHECKPOINT) as serving:
        load = Load(target=serving.load.target, methods=_scored(serving.load), connections=8)
        server = under_load(load)
        rate = 2_000.0
        while server.window(rate, 1.0).holds(SLA_MS) and rate < 60_000:
            rate *= 1.4
        kept = []
        for _ in range(9):
            server.settle()
            saturated = server.window(rate, 1.5).answered
            server.settle()
            kept.append(server.window(4 * rate, 1.5).answered / max(saturated, 1.0))
    figures.add(
        name="quick: goodput at four times the load / at once, 3,600×8",
        ours=kept,
        unit="×",
        higher_is_better=True,
        command="make bench-quick",
    )


@dataclass(frozen=True)
class Counters:
    """The counters of the server."""

    values: dict[str, float]

    @classmethod
    def of(cls, serving: Serving) -> Counters:
        """Read the counters: one for each set of labels, and their sum under the bare name."""
        with urllib.request.urlopen(f"http://{serving.metrics}/metrics", timeout=10) as reply:
            text = reply.read().decode()
        values: dict[str, float] = {}
        for line in text.splitlines():
            if line.startswith("#") or not line:
                continue
            # An exemplar follows the sample.
            name, _, value = line.partition(" # ")[0].rpartition(" ")
            values[name] = float(value)
            if "{" in name:
                bare = name.partition("{")[0]
                values[bare] = values.get(bare, 0.0) + float(value)
        return cls(values)

    def __getitem__(self, name: str) -> float:
        return self.values.get(name, 0.0)

    def fallbacks(self, reason: str) -> int:
        """Return the number of fallback answers for a reason."""
        label = f'reason="{reason}"'
        counted = (
            value
            for name, value in self.values.items()
            if name.startswith("scorer_fallbacks_total{") and label in name
        )
        return int(sum(counted))

    def since(self, before: Counters, name: str) -> int:
        """Return the increase of a counter."""
        return int(self[name] - before[name])


class Bench:
    """The cases with one model."""

    def __init__(self, figures: Figures, options: Options, it: Subject, words: str) -> None:
        self.figures = figures
        self.options = options
        # The default applies to the cases on the demo's server. These cases have their own lengths.
        self.seconds = None if options.seconds == Options.seconds else options.seconds
        if options.smoke:
            self.seconds = 2.0
        self.it = it
        self.words = words
        self.capacity = 0.0

    def all(self) -> None:
        """Measure every case."""
        with self._server() as serving:
            self._measure_capacity(serving)
            self.overload(serving, CASES / "overload")
            self.step(serving)
            self.noisy(serving)
            self.cancel(serving)
            self.stolen(serving)
        self.slow()

    def small(self) -> None:
        """Measure only the case that is harder with a fast model.

        The generator's core could not offer ten times the capacity of a fast model.
        """
        with self._server() as serving:
            self._measure_capacity(serving)
            self.batches(serving)

    # --- the cases ---

    def _measure_capacity(self, serving: Serving) -> None:
        """Measure the highest answer rate of the model: with p99 within the bound, or at saturation."""
        load = Load(target=serving.load.target, methods=_scored(serving.load), connections=8)
        found = capacity(load, SLA_MS, start=1000.0, options=self.options)
        sustained, bound = median_rate(found)
        if sustained <= 0:
            raise servers.ServerError(f"{self.words}: no rate keeps p99 within {SLA_MS:g} ms")
        # The highest rate with p99 within the bound is lower than the answer rate of a saturated server.
        # Multiples of it would overload the server less than their factor says.
        saturated = new_search(load, start=sustained, options=self.options).saturation(sustained)
        self.capacity = max(sustained, saturated)
        self._add("capacity: most answers by the model", self.capacity, "req/s", higher_is_better=True)
        self._add(
            f"highest rate with p99 ≤ {SLA_MS:g} ms",
            [one.rate for one in found],
            "req/s",
            higher_is_better=True,
            note="bound by the generator" if bound else None,
        )

    def overload(self, serving: Serving, case: Path) -> None:
        """Measure goodput and p99 from one to ten times the capacity, and check the number of replies."""
        before = Counters.of(serving)
        report = self._run(serving, case)
        after = Counters.of(serving)
        (caller,) = report.callers
        for step in caller.steps:
            offered = step.rate / self.capacity
            windows = _windows(report, step)
            shares = [_by_model(window, length) / self.capacity * 100 for window, length in windows]
            self._add(
                f"goodput at {offered:g}× capacity, of capacity",
                shares,
                "%",
                target=90.0,
                higher_is_better=True,
                note=f"{median(shares) * self.capacity / 100:,.0f}/s by the model,"
                f" {step.fallbacks / step.seconds:,.0f}/s by a fallback,"
                f" {step.errors / step.seconds:,.0f}/s refused{self._bound(report)}",
            )
            self._add(
                f"p99 of what is answered at {offered:g}× capacity",
                [window.latency_us.p99 / 1000 for window, _ in windows if window.latency_us.count],
                "ms",
                target=SLA_MS,
            )
            self._point("goodput", f"goodput, {self.words}", offered, median(shares), "% of capacity")
        self._exactly_one_reply(report, before, after, serving.process.log.parent / "decisions")

    def _exactly_one_reply(self, report: Report, before: Counters, after: Counters, log: Path) -> None:
        """Compare the client's results (one per request) with the server's log (one record per id).

        A lost reply and a duplicate one do not cancel: duplicate decisions are found by their ids.
        """
        lost = {"client_timeout", "connection_lost", "stream_reset", "malformed_reply", "not_connected"}
        without = sum(count for name, count in report.errors.items() if name in lost | {"overflow"})
        arrived = after.since(before, "scorer_requests_arrived_total")
        replied = after.since(before, "scorer_requests_replied_total")
        doubled = sum(count - 1 for count in _decisions_by_id(log).values())
        self._add(
            "overload: requests without exactly one reply",
            without + doubled + abs(arrived - (replied - doubled)),
            "requests",
            target=0.0,
            note=f"{report.requests:,} sent, server: {arrived:,} arrived, {replied:,} replied,"
            f" {doubled:,} decisions logged twice;"
            f" endings other than answers: {dict(report.errors) or 'none'}",
        )

    def step(self, serving: Serving) -> None:
        """Step the load from zero to five times the capacity and back to half of it."""
        report = self._run(serving, CASES / "step")
        starts = [step.start for step in report.callers[0].steps]
        windows = [window for window in report.windows if window.latency_us.count]
        normal = median(it.latency_us.p99 for it in windows if it.start < starts[1])
        after = [it for it in windows if it.start >= starts[3]]
        # The p99 of half a second depends on a few requests, so twice the normal p99 is accepted.
        late = [it.start for it in after if it.latency_us.p99 > 2 * normal]
        length = report.windows[1].start - report.windows[0].start
        self._add(
            "step 0 → 5× → 0.5×: p99 back to normal after",
            max(late) + length - starts[3] if late else 0.0,
            "s",
            target=2.0,
            note=f"normal is a p99 of {normal / 1000:.2f} ms or up to twice that",
        )
        for window in windows:
            words = f"p99, {self.words}"
            self._point("step", words, window.start, window.latency_us.p99 / 1000, "ms")

    def batches(self, serving: Serving) -> None:
        """Measure single rows with and without concurrent batches of 1,000 rows."""
        report = self._run(serving, CASES / "batches", rate=1000.0)
        pairs = _alternating(report.callers[0].steps)
        self._add(
            "p99 of single rows beside batches of 1,000",
            [beside / 1000 for _, beside in pairs],
            "ms",
            target=SLA_MS,
            note=f"{median(alone for alone, _ in pairs) / 1000:.2f} ms without batches",
        )

    def noisy(self, serving: Serving) -> None:
        """Measure four callers while a fifth sends twenty times as many requests."""
        report = self._run(serving, CASES / "noisy-caller")
        pairs = [pair for caller in report.callers[:-1] for pair in _alternating(caller.steps)]
        calm, loud = (median(column) for column in zip(*pairs, strict=True))
        steps = [step for caller in report.callers[:-1] for step in caller.steps[1::2]]
        missed = sum(step.misses + step.fallbacks for step in steps) / sum(step.requests for step in steps)
        self._add(
            "p99 of other callers beside one at 20×",
            [(beside / alone - 1) * 100 for alone, beside in pairs if alone],
            "% more",
            target=10.0,
            note=f"{calm / 1000:.2f} and {loud / 1000:.2f} ms; {missed:.2%} of theirs late, refused or by"
            " fallback meanwhile",
        )

    def cancel(self, serving: Serving) -> None:
        """Cancel requests at random until 100,000 were cancelled."""
        self._run(serving, CASES / "cancel", rate=self.capacity * 1.5, seconds=self.seconds or 3.0)
        before, memory = Counters.of(serving), serving.process.memory_mb()
        cancelled = arrived = 0
        wanted = CANCELLED if self.seconds is None else CANCELLED // (1000 if self.options.smoke else 10)
        while cancelled < wanted:
            report = self._run(
                serving, CASES / "cancel", rate=self.capacity * 1.5, seconds=self.seconds or 10.0
            )
            cancelled += report.cancelled
            arrived += report.sent
            if not report.cancelled:
                raise servers.ServerError("nothing could be cancelled: every reply came first")
        inflight = self._settled(serving)
        after = Counters.of(serving)
        ended = sum(after.since(before, f"scorer_requests_{how}_total") for how in ("replied", "cancelled"))
        left = inflight + abs(after.since(before, "scorer_requests_arrived_total") - ended)
        self._add(
            "requests left behind by cancelled ones",
            left,
            "requests",
            target=0.0,
            note=f"{cancelled:,} cancelled",
        )
        self._add(
            "memory grown by cancelled requests", serving.process.memory_mb() - memory, "MB", target=8.0
        )

    def stolen(self, serving: Serving) -> None:
        """Take the core from the server, first with a busy process, then with SIGSTOP."""
        before = Counters.of(serving)
        stop = threading.Event()
        thief = threading.Thread(target=_steal, args=(serving.process.pid, stop))
        thief.start()
        try:
            report = self._run(serving, CASES / "stolen-cpu")
        finally:
            stop.set()
            thief.join()
        after = Counters.of(serving)
        # Results that were computed too late and discarded. Requests that expired in the queue are not
        # counted.
        wasted = after.since(before, "scorer_late_results_total")
        late = after.fallbacks("late") - before.fallbacks("late")
        self._add(
            "expired work executed while the core is stolen or the server stopped, of all requests",
            wasted / report.requests * 100,
            "%",
            target=0.1,
            note=f"{wasted:,} results came too late; {late - wasted:,} requests expired unstarted and got the"
            f" fallback; {report.answered:,} of {report.requests:,} answered",
        )

    def slow(self) -> None:
        """Make the model ten times slower than measured, in a server built with fault injection."""
        limits: dict[str, Any] = {"p99_ms": SLA_MS, "tier": 0, "mode": "enforce"}
        limits["fallback"] = {"decision": "review", "score": 0.5}
        config = servers.settings(metrics=True, **limits)
        started = threading.Event()
        with servers.rust(
            self.it, config=config, features=["fault-injection"], SCORER_FAULTS="faults.json"
        ) as serving:
            before = Counters.of(serving)

            def slow_down() -> None:
                # The first progress report comes at the end of the warm-up. The second step begins five
                # seconds later.
                started.wait()
                if not ended.wait(self._seconds(CASES / "slow-model") / 3):
                    (serving.process.log.parent / "faults.json").write_text('{"slow": 10}')

            ended = threading.Event()
            fault = threading.Thread(target=slow_down)
            fault.start()
            try:
                report = self._run(serving, CASES / "slow-model", progress=lambda _: started.set())
            finally:
                started.set()
                ended.set()
                fault.join()
            after = Counters.of(serving)
        step = report.callers[0].steps[1]
        self._add(
            "p99 of answers, fallbacks included, while the model is ten times slower",
            step.latency_us.p99 / 1000,
            "ms",
            target=SLA_MS,
            note=f"{step.fallbacks / step.requests:.0%} by the fallback, {step.errors:,} of {step.requests:,}"
            f" refused; {after.since(before, 'scorer_late_results_total'):,} late results thrown away",
        )

    # --- one run ---

    @contextmanager
    def _server(self) -> Iterator[Serving]:
        with servers.hosted(self.it, checkpoint=CHECKPOINT) as serving:
            yield serving

    def _seconds(self, case: Path) -> float:
        values = {"rate": 1.0, **case_file(case).load, "target": "none"}
        own = make_settings(values).seconds
        return own if self.seconds is None else self.seconds

    def _run(
        self,
        serving: Serving,
        case: Path,
        *,
        progress: Callable[[LoadProgress], None] | None = None,
        **settings: Any,
    ) -> Report:
        load = case_file(case).load
        values: dict[str, Any] = {"rate": self.capacity, **load, "target": serving.load.target, **settings}
        values["sla_ms"] = SLA_MS
        if self.seconds is not None and "seconds" not in settings:
            values["seconds"] = self.seconds
        _say(f"{self.words}: {case.name} at {values['rate']:,.0f}/s")
        _, report = run_load_test(make_settings(values), progress)
        if report.send_lag_us.p99 > 1000:
            _say(f"the generator was {report.send_lag_us.p99 / 1000:.1f} ms late at its p99")
        return report

    def _settled(self, serving: Serving) -> int:
        """Return the number of requests that are still in flight after ten seconds, 0 if all ended."""
        for _ in range(100):
            if not (left := int(Counters.of(serving)["scorer_inflight"])):
                return 0
            time.sleep(0.1)
        return left

    def _bound(self, report: Report) -> str:
        late = report.send_lag_us.p99 / 1000
        return f"; the generator itself was {late:.1f} ms late" if late > 1 else ""

    def _add(self, name: str, ours: float, unit: str, **more: Any) -> None:
        self.figures.add(name=f"{name}, {self.words}", ours=ours, unit=unit, command=COMMAND, **more)

    def _point(self, plot: str, name: str, x: float, y: float, unit: str) -> None:
        self.figures.add(name=name, ours=y, unit=unit, command=COMMAND, plot=plot, x=x)


def _steal(pid: int, stop: threading.Event) -> None:
    """Wait, use the server's core for five seconds, then stop the server twice for half a second."""
    if stop.wait(6.0):
        return
    spin = ["taskset", "-c", str(cores()[0]), sys.executable, "-c", "while True: pass"]
    spinning = subprocess.Popen(spin)
    try:
        stopped = stop.wait(5.0)
    finally:
        spinning.kill()
        spinning.wait()
    for _ in range(2):
        if stopped or stop.wait(1.0):
            return
        os.kill(pid, signal.SIGSTOP)
        stopped = stop.wait(0.5)
        os.kill(pid, signal.SIGCONT)


def _decisions_by_id(log: Path) -> Counter[str]:
    """Return how often each decision id is in a server's log."""
    found: Counter[str] = Counter()
    for _, record in LogReader(log).records():
        if record.HasField("decision"):
            found[record.decision.decision_id] += 1
    return found


def _by_model(window: WindowReport, seconds: float) -> float:
    """Return the requests per second that the model answered within the SLA."""
    return (window.intended - window.misses - window.fallbacks) / seconds


def _windows(report: Report, step: StepReport) -> list[tuple[WindowReport, float]]:
    """Return the complete windows of a step and their length in seconds."""
    starts = [window.start for window in report.windows]
    length = starts[1] - starts[0] if len(starts) > 1 else step.seconds
    end = step.start + step.seconds
    whole = [
        (window, length)
        for window in report.windows
        if window.start >= step.start - 1e-6 and window.start + length <= end + 1e-6
    ]
    if whole:
        return whole
    # The step is shorter than a window, as in a smoke run, and is used as one window.
    shared = {name: getattr(step, name) for name in ("start", "misses", "errors", "fallbacks", "latency_us")}
    return [(WindowReport(intended=step.requests, **shared), step.seconds)]


def _alternating(steps: tuple[StepReport, ...]) -> list[tuple[float, float]]:
    """Return the p99 of each step with an even index and of the step after it, microseconds."""
    p99 = [step.latency_us.p99 for step in steps]
    return list(zip(p99[0::2], p99[1::2], strict=True))


def _scored(load: Load) -> list[Any]:
    return [replace(method, reply="score") for method in load.methods]


def _say(text: str) -> None:
    sys.stdout.write(f"   {text}\n")
    sys.stdout.flush()
