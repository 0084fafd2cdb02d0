"""Compare the server with others: sustained rates, latencies, cost of scoring and of Python, a held GIL.

One server at a time runs on one core, the generator on another. In each round every server, ours and the
peers, is started and searched once. A figure is the median over the rounds. README.md describes the settings
of the peers.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import grpc

from loadtests.figures import Figures
from loadtests.openloop import SEARCHES, Load, new_search, on_generators_core, under_load
from loadtests.options import Options
from loadtests.peers import servers
from loadtests.peers.servers import ServerError, Serving
from loadtests.peers.subject import Subject, subject
from scorer.loadtest.loaded import LoadedServer
from scorer.loadtest.ratesearch import Found, RateSearch, limits, median_rate
from scorer.loadtest.report import Report

COMMAND: Final = "make bench ARGS=wire"
# A rate is searched for each of these bounds of p99, milliseconds.
THRESHOLDS_MS: Final = (25.0, 10.0, 5.0)
# Rates at which p99 is measured, requests per second, with the seconds per round.
STEADY: Final = {100.0: 4.0, 500.0: 2.5, 2000.0: 1.5}
STEADY_THOROUGH: Final = {100.0: 6.0, 500.0: 4.0, 2000.0: 3.0}
HELD_SECONDS: Final = 5.0
WORK: Final = "500×6"

OURS: Final = "scorer"
SOCKET: Final = "scorer, Unix socket"
NOOP: Final = "scorer, no-op"
INFER: Final = "scorer, ModelInfer"
RUST: Final = "scorer-server (no Python)"
MLSERVER: Final = "MLServer"
MLSERVER_PARALLEL: Final = "MLServer, 2 parallel workers"
FOREST: Final = "grpc.aio + scorer.Forest"

Starts = Callable[[Subject], AbstractContextManager[Serving]]
PEERS: Final[dict[str, Starts]] = {
    FOREST: lambda model: servers.grpc_aio(model, "scorer"),
    "grpc.aio + XGBoost": lambda model: servers.grpc_aio(model, "xgboost"),
    MLSERVER: servers.mlserver,
    MLSERVER_PARALLEL: lambda model: servers.mlserver(model, workers=2),
    "BentoML (HTTP)": servers.bentoml,
    "Ray Serve": servers.ray_serve,
}
# Targets: the smallest ratio of the rates at p99 ≤ 5 ms by peer, and the smallest ratio of p99 by peer and
# rate. MLServer does not sustain 500 requests/s.
LEAST_RATE: Final = {RUST: 0.9, MLSERVER: 25.0}
LEAST_STEADY: Final = {(MLSERVER, 100.0): 4.0, (FOREST, 500.0): 1.0}
# For these, only the rate at p99 ≤ 5 ms is a figure.
RATE_ALONE: Final = frozenset({SOCKET, NOOP})


def run(figures: Figures, options: Options) -> None:
    """Measure every figure of the group.

    If a peer does not start or ends early, a line of the table reports it and the run continues.

    Raises:
        ServerError: A server of ours could not be measured. All other servers were measured.
    """
    model = subject()
    if options.quick:
        with on_generators_core():
            quick(figures, model)
        return
    with on_generators_core():
        bench = Bench(figures, model, options)
        bench.measure_rounds(1 if options.smoke else SEARCHES)
        bench.add_figures()
        bench.wire_alone()
        bench.held_lock()
    if ours := [name for name in (OURS, RUST) if name in bench.failures]:
        raise ServerError("; ".join(f"{name}: {bench.failures[name][0]}" for name in ours))


QUICK_ROUNDS: Final = 9
# The first rate in the search for saturation, requests per second.
FIRST_RATE: Final = {OURS: 8_000.0, FOREST: 500.0}


def quick(figures: Figures, model: Subject) -> None:
    """Compare ours with grpc.aio and our engine, in turns: p99 at a low rate, answers/s at saturation."""
    p99: dict[str, list[float]] = defaultdict(list)
    answers: dict[str, list[float]] = defaultdict(list)
    with servers.hosted(model) as ours, PEERS[FOREST](model) as peer:
        loaded = {OURS: under_load(ours.load), FOREST: under_load(peer.load)}
        flood = {name: _saturating_rate(server, FIRST_RATE[name]) for name, server in loaded.items()}
        for _ in range(QUICK_ROUNDS):
            for name, server in loaded.items():
                p99[name].append(_steady_ms(server, 500.0, 1.5))
                answers[name].append(max(server.window(flood[name], 1.0).answered, 1.0))
                server.settle()
    for what, unit, rounds, higher in (
        ("p99 at 500 req/s", "ms", p99, False),
        ("answers/s at saturation", "req/s", answers, True),
    ):
        figures.add(
            name=f"quick: {what}, {WORK}",
            ours=rounds[OURS],
            unit=unit,
            peer=FOREST,
            theirs=rounds[FOREST],
            higher_is_better=higher,
            command="make bench-quick",
        )


@dataclass
class Rounds:
    """Measurements of one load on one server, by the number of the round.

    Attributes:
        found: Results of the searches, by bound of p99.
        saturation: Answers per second at saturation.
        steady_ms: p99 by rate, milliseconds.
        points: All values of p99 by rate, milliseconds, for the plot.
    """

    found: dict[float, dict[int, Found]] = field(default_factory=lambda: defaultdict(dict))
    saturation: dict[int, float] = field(default_factory=dict)
    steady_ms: dict[float, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    points: dict[float, list[float]] = field(default_factory=lambda: defaultdict(list))

    def rates(self, threshold_ms: float) -> dict[int, float]:
        """Return the rate of each round."""
        return {number: one.rate for number, one in self.found[threshold_ms].items()}

    def last_rate(self, threshold_ms: float) -> float | None:
        """Return the rate of the latest round that found one."""
        rates = [rate for rate in self.rates(threshold_ms).values() if rate]
        return rates[-1] if rates else None


class Bench:
    """A run of the group."""

    def __init__(self, figures: Figures, model: Subject, options: Options) -> None:
        self.figures = figures
        self.model = model
        self.options = options
        self.command = f"{COMMAND[:-4]}'wire --thorough'" if options.thorough else COMMAND
        self.count = 0
        # Reasons why a server was not measured in a round, by server.
        self.failures: dict[str, list[str]] = defaultdict(list)
        self.rounds: dict[str, Rounds] = defaultdict(Rounds)

    # --- rounds ---

    def measure_rounds(self, count: int) -> None:
        """Start and search every server once per round."""
        self.count = count
        starts: dict[str, Starts] = {OURS: servers.hosted, RUST: servers.rust, **PEERS}
        for number in range(1, count + 1):
            for name, start in starts.items():
                _say(f"round {number} of {count}: {name}")
                self._measure(number, name, start)

    def _measure(self, number: int, name: str, start: Starts) -> None:
        """Start and search one server. If that fails, try again once: some servers do not always start."""
        reason = ""
        for _ in range(2):
            try:
                with start(self.model) as serving:
                    for variant, load in self._loads(name, serving).items():
                        self._search(number, variant, load)
            except (ServerError, grpc.RpcError, subprocess.CalledProcessError, OSError) as error:
                _say(f"{name} failed: {error}")
                reason = _first_line(error)
            else:
                return
        self.failures[name].append(reason)

    def _loads(self, name: str, serving: Serving) -> Mapping[str, Load]:
        if name != OURS:
            return {name: serving.load}
        return {
            OURS: serving.load,
            SOCKET: servers.over_unix_socket(serving),
            NOOP: servers.noop(serving.load),
            INFER: servers.inference(serving.load, self.model),
        }

    def _search(self, number: int, name: str, load: Load) -> None:
        rounds = self.rounds[name]
        start = rounds.last_rate(THRESHOLDS_MS[0]) or (8000.0 if name.startswith(OURS) else 400.0)
        search = new_search(load, start=start, options=self.options)
        search.told = lambda window: _say(
            f"{name}: {window.rate:,.0f}/s p99 {window.p99_ms:.2f} ms"
            + (f", generator {window.lag_us / 1000:.1f} ms late" if window.is_late else "")
        )
        near: float | None = None
        for threshold in (5.0,) if name in RATE_ALONE else THRESHOLDS_MS:
            found = search.highest(threshold, near=rounds.last_rate(threshold) or near)
            rounds.found[threshold][number] = found
            near = found.rate or None
            _say(f"{name}: {found.rate:,.0f}/s with p99 ≤ {threshold:g} ms{limits([found])}")
        if name not in RATE_ALONE:
            self._saturate(number, rounds, search)
            server = under_load(load)
            server.settle()
            for rate, seconds in (STEADY_THOROUGH if self.options.thorough else STEADY).items():
                length = 0.5 if self.options.smoke else seconds
                rounds.steady_ms[rate][number] = _steady_ms(server, rate, length)
        for windows in search.windows.values():
            for window in windows:
                if window.p99_ms < 1000:
                    rounds.points[window.rate].append(window.p99_ms)

    def _saturate(self, number: int, rounds: Rounds, search: RateSearch) -> None:
        highest = max(
            (search.rate(place) for place, windows in search.windows.items() if windows), default=0.0
        )
        if search.generator_limit is not None or not highest:
            return
        rounds.saturation[number] = search.saturation(highest)

    # --- figures ---

    def add_figures(self) -> None:
        """Add our medians with those of each peer, and the points of the plot."""
        for name in [RUST, *PEERS]:
            self._add_rates("Score", OURS, name)
            self._add_steady(name)
        for name in (MLSERVER, MLSERVER_PARALLEL):
            self._add_rates("ModelInfer", INFER, name)
        for name in (SOCKET, NOOP):
            found = list(self.rounds[name].found[5.0].values())
            if found and median_rate(found)[0]:
                self.figures.add(
                    name=f"highest rate with p99 ≤ 5 ms, {name.partition(', ')[2]}, {WORK}",
                    ours=[one.rate for one in found],
                    unit="req/s",
                    command=self.command,
                    higher_is_better=True,
                    note=limits(found).removeprefix("; ") or None,
                )
        for name, reasons in self.failures.items():
            self.figures.add(
                name=f"rounds in which {name} could not be measured, of {self.count}",
                ours=len(reasons),
                unit="rounds",
                command=self.command,
                note="; ".join(dict.fromkeys(reasons)),
            )
        for name in (OURS, RUST, *PEERS):
            for rate, values in sorted(self.rounds[name].points.items()):
                self.figures.add(
                    name=name,
                    ours=median(values),
                    unit="ms",
                    command=self.command,
                    plot="rate",
                    x=round(rate, 1),
                )

    def _add_rates(self, what: str, ours: str, peer: str) -> None:
        own, theirs = self.rounds[ours], self.rounds[peer]
        for threshold in sorted(THRESHOLDS_MS):
            shortfalls = [
                f"{name}{words}"
                for name, rounds in (("scorer", own), (peer, theirs))
                if (words := limits(list(rounds.found[threshold].values())))
            ]
            self._add_pair(
                f"highest rate with p99 ≤ {threshold:g} ms, {what}, {WORK}",
                own.rates(threshold),
                peer,
                theirs.rates(threshold),
                target=LEAST_RATE.get(peer) if threshold == 5.0 else None,
                note=", ".join(shortfalls).replace("; ", ": ") or None,
            )
        name = f"answers/s at saturation, {what}, {WORK}"
        self._add_pair(name, own.saturation, peer, theirs.saturation)

    def _add_pair(
        self,
        name: str,
        ours: Mapping[int, float],
        peer: str,
        theirs: Mapping[int, float],
        *,
        target: float | None = None,
        note: str | None = None,
    ) -> None:
        """Add the rounds in which both servers were measured. If any round has no rate, add no ratio."""
        both = [number for number in ours if number in theirs]
        if not both:
            return
        own, other = [ours[number] for number in both], [theirs[number] for number in both]
        if all(own) and all(other):
            self.figures.add(
                name=name,
                ours=own,
                unit="req/s",
                peer=peer,
                theirs=other,
                target=target,
                higher_is_better=True,
                command=self.command,
                note=note,
            )
        else:
            self.figures.add(
                name=f"{name}; no ratio to {peer}",
                ours=own,
                unit="req/s",
                command=self.command,
                higher_is_better=True,
                note=f"{peer} by round: {', '.join(f'{rate:,.0f}' for rate in other)}",
            )

    def _add_steady(self, peer: str) -> None:
        held = list(self.rounds[peer].found[THRESHOLDS_MS[0]].values())
        highest = median_rate(held)[0] if held else 0.0
        for rate in STEADY:
            ours, theirs = self.rounds[OURS].steady_ms[rate], self.rounds[peer].steady_ms[rate]
            both = [number for number in ours if number in theirs]
            # At a rate that the peer does not sustain, its p99 would be the time in a growing queue.
            if not both or highest < rate:
                continue
            self.figures.add(
                name=f"p99 at {rate:,g} req/s, {WORK}",
                ours=[ours[number] for number in both],
                unit="ms",
                peer=peer,
                theirs=[theirs[number] for number in both],
                target=LEAST_STEADY.get((peer, rate)),
                command=self.command,
            )

    # --- the wire alone, and a held lock ---

    def wire_alone(self) -> None:
        """Measure the time that decoding, scoring, logging and encoding add to a call that does nothing."""
        with servers.hosted(self.model) as serving:
            socket = servers.over_unix_socket(serving)
            for words, load in (("TCP", serving.load), ("Unix socket", socket)):
                seconds = 0.3 if self.options.smoke else 2.0 if self.options.thorough else 1.0
                noop = servers.noop(load)
                pairs = [
                    (_p50(load.run(2000.0, seconds)), _p50(noop.run(2000.0, seconds)))
                    for _ in range(2 if self.options.smoke else 9)
                ]
                self.figures.add(
                    name=f"Score minus no-op at p50, {WORK}, {words}",
                    ours=[score - empty for score, empty in pairs],
                    unit="µs",
                    target=25.0,
                    command=self.command,
                    note=f"p50 {median(s for s, _ in pairs):.0f} and {median(n for _, n in pairs):.0f} µs",
                )

    def held_lock(self) -> None:
        """Measure p99 with and without a thread that holds the GIL, in turns."""
        for what, target, words in (
            ("hold", 10.0, "GIL held"),
            ("burn", None, "GIL held by a thread that also burns the server's core"),
        ):
            with servers.embedded(self.model) as serving:
                seconds = 0.8 if self.options.smoke else HELD_SECONDS
                pairs = _in_turns(serving, what, seconds, 2 if self.options.smoke else 6)
            free, held = (median(column) for column in zip(*pairs, strict=True))
            self.figures.add(
                name=f"p99 at 2,000 req/s, {words}, {WORK}",
                ours=[(with_lock / without - 1) * 100 for without, with_lock in pairs],
                unit="% more",
                target=target,
                command=self.command,
                note=f"p99 {free / 1000:.3f} ms free, {held / 1000:.3f} ms held, for {HELD_SECONDS:g} s each",
            )


def _in_turns(serving: Serving, what: str, seconds: float, turns: int) -> list[tuple[float, float]]:
    """Return the p99 of each step with a free GIL and of the step with a held GIL after it, microseconds."""
    steps = [{"seconds": seconds, "load": 1.0} for _ in range(2 * turns)]
    warmup = 1.0
    started = threading.Event()

    def hold() -> None:
        # The first progress report comes one second after the first request, at the end of the warm-up.
        started.wait()
        for _ in range(turns):
            if pause.wait(seconds):
                return
            serving.process.tell(f"{what} {seconds - 0.2}")
            if pause.wait(seconds):
                return

    pause = threading.Event()
    holder = threading.Thread(target=hold)
    holder.start()
    try:
        report = serving.load.run(
            2000.0,
            2 * turns * seconds,
            steps=steps,
            warmup_seconds=warmup,
            progress=lambda _: started.set(),
        )
    finally:
        started.set()
        pause.set()
        holder.join()
    p99 = [step.latency_us.p99 for step in report.callers[0].steps]
    return list(zip(p99[0::2], p99[1::2], strict=True))


def _p50(report: Report) -> float:
    return float(report.latency_us.p50)


def _steady_ms(server: LoadedServer, rate: float, seconds: float) -> float:
    """Return p99 at a rate. Measure again, at most three times, if the generator was late."""
    window = server.window(rate, seconds)
    for _ in range(3):
        if not window.is_late:
            break
        window = server.window(rate, seconds)
    return window.p99_ms


def _saturating_rate(server: LoadedServer, rate: float) -> float:
    """Return a rate a little above the sustained one.

    At a much higher rate, requests would wait longer than any timeout.
    """
    while server.window(rate, 0.7).holds(THRESHOLDS_MS[0]) and rate < 200_000:
        rate *= 1.5
    server.settle()
    return rate * 1.2


def _first_line(error: BaseException) -> str:
    """Return the first informative line of an error, at most 120 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    details = [line for line in lines if line.startswith("details")]
    return (details or lines or [type(error).__name__])[0][:120]


def _say(text: str) -> None:
    sys.stdout.write(f"   {text}\n")
    sys.stdout.flush()
