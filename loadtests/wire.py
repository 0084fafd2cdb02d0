"""The server beside other servers: sustained rates, latencies, the cost of scoring and of Python, a held GIL.

One server at a time runs on one core, the generator on another. In each round every server, ours and peers
alike, is started and searched once; a figure is the median over the rounds. README.md describes the peers'
settings.
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
from loadtests.openloop import SEARCHES, Load, LoadedServer, new_search, on_generators_core
from loadtests.options import Options
from loadtests.peers import servers
from loadtests.peers.servers import ServerError, Serving
from loadtests.peers.subject import Subject, subject
from loadtests.ratesearch import Found, RateSearch, median_rate
from scorer.loadtest.report import Report

COMMAND: Final = "make bench ARGS=wire"
# Rates are searched for at each of these bounds of p99, milliseconds.
THRESHOLDS_MS: Final = (25.0, 10.0, 5.0)
# p99 is measured at these rates, requests per second, for so many seconds a round.
STEADY: Final = {100.0: 6.0, 500.0: 4.0, 2000.0: 3.0}
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
# The least ratio of the rates at p99 ≤ 5 ms, and the least ratio of p99 at 500 requests/s.
LEAST_RATE: Final = {RUST: 0.9, MLSERVER: 25.0}
LEAST_STEADY: Final = {MLSERVER: 4.0, FOREST: 1.0}


def run(figures: Figures, options: Options) -> None:
    """Measure every figure of the wire.

    Raises:
        ServerError: A peer could not be measured; everything else was.
    """
    model = subject()
    if options.quick:
        with on_generators_core():
            quick(figures, model)
        return
    with on_generators_core():
        bench = Bench(figures, model, smoke=options.smoke)
        bench.measure_rounds(1 if options.smoke else SEARCHES)
        bench.add_figures()
        bench.wire_alone()
        bench.held_lock()
    if bench.failed:
        raise ServerError("; ".join(bench.failed))


QUICK_ROUNDS: Final = 9
# The first rate offered on the way to saturation, requests per second.
FIRST_RATE: Final = {OURS: 8_000.0, FOREST: 500.0}


def quick(figures: Figures, model: Subject) -> None:
    """Measure ours beside grpc.aio with our engine, in turns: p99 at a low rate, answers/s at saturation."""
    p99: dict[str, list[float]] = defaultdict(list)
    answers: dict[str, list[float]] = defaultdict(list)
    with servers.hosted(model) as ours, PEERS[FOREST](model) as peer:
        loaded = {OURS: LoadedServer(ours.load), FOREST: LoadedServer(peer.load)}
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
    """What the rounds measured of one load on one server.

    Attributes:
        found: The searches by bound of p99, one per round.
        saturation: Answers per second under more load than can be answered, one per round.
        steady_ms: p99 by rate, one per round.
        points: All p99 by rate, for the plot.
    """

    found: dict[float, list[Found]] = field(default_factory=lambda: defaultdict(list))
    saturation: list[float] = field(default_factory=list)
    steady_ms: dict[float, list[float]] = field(default_factory=lambda: defaultdict(list))
    points: dict[float, list[float]] = field(default_factory=lambda: defaultdict(list))

    def rates(self, threshold_ms: float) -> list[float]:
        """Return the rate of each round."""
        return [one.rate for one in self.found[threshold_ms]]


class Bench:
    """One run of the group."""

    def __init__(self, figures: Figures, model: Subject, *, smoke: bool = False) -> None:
        self.figures = figures
        self.model = model
        self.smoke = smoke
        self.failed: list[str] = []
        self.rounds: dict[str, Rounds] = defaultdict(Rounds)

    # --- rounds ---

    def measure_rounds(self, count: int) -> None:
        """Start and search every server once per round."""
        starts: dict[str, Starts] = {OURS: servers.hosted, RUST: servers.rust, **PEERS}
        for number in range(1, count + 1):
            for name, start in starts.items():
                _say(f"round {number} of {count}: {name}")
                if not self._measure(name, start):
                    self.failed.append(f"{name} was not measured in round {number}")

    def _measure(self, name: str, start: Starts) -> bool:
        """Start and search one server; start it once more if that fails, as some do not always come up."""
        for _ in range(2):
            try:
                with start(self.model) as serving:
                    for variant, load in self._loads(name, serving).items():
                        self._search(variant, load)
            except (ServerError, grpc.RpcError, subprocess.CalledProcessError, OSError) as error:
                _say(f"{name} failed: {error}")
            else:
                return True
        return False

    def _loads(self, name: str, serving: Serving) -> Mapping[str, Load]:
        if name != OURS:
            return {name: serving.load}
        return {
            OURS: serving.load,
            SOCKET: servers.over_unix_socket(serving),
            NOOP: servers.noop(serving.load),
            INFER: servers.inference(serving.load, self.model),
        }

    def _search(self, name: str, load: Load) -> None:
        rounds = self.rounds[name]
        before = [found.rate for found in rounds.found[THRESHOLDS_MS[0]] if found.rate]
        start = before[-1] if before else (8000.0 if name.startswith(OURS) else 400.0)
        search = new_search(load, start=start, smoke=self.smoke)
        search.told = lambda window: _say(
            f"{name}: {window.rate:,.0f}/s p99 {window.p99_ms:.2f} ms"
            + (f", generator {window.lag_us / 1000:.1f} ms late" if window.is_late else "")
        )
        near: float | None = None
        for threshold in THRESHOLDS_MS:
            found = search.highest(threshold, near=near)
            rounds.found[threshold].append(found)
            near = found.rate or None
            _say(f"{name}: {found.rate:,.0f}/s with p99 ≤ {threshold:g} ms")
        self._saturate(rounds, search)
        server = LoadedServer(load)
        server.settle()
        for rate, seconds in STEADY.items():
            rounds.steady_ms[rate].append(_steady_ms(server, rate, 0.5 if self.smoke else seconds))
        for windows in search.windows.values():
            for window in windows:
                if window.p99_ms < 1000:
                    rounds.points[window.rate].append(window.p99_ms)

    def _saturate(self, rounds: Rounds, search: RateSearch) -> None:
        highest = max(
            (search.rate(place) for place, windows in search.windows.items() if windows), default=0.0
        )
        if self.smoke or search.generator_limit is not None:
            return
        rounds.saturation.append(search.saturation(highest))

    # --- figures ---

    def add_figures(self) -> None:
        """Add the medians of ours beside each peer's, and the points of the plot."""
        for name in [RUST, *PEERS]:
            self._add_rates("Score", OURS, name)
            self._add_steady(name)
        for name in (MLSERVER, MLSERVER_PARALLEL):
            self._add_rates("ModelInfer", INFER, name)
        for name in (SOCKET, NOOP):
            rates = self.rounds[name].rates(5.0)
            if rates and median(rates):
                self.figures.add(
                    name=f"highest rate with p99 ≤ 5 ms, {name.partition(', ')[2]}, {WORK}",
                    ours=rates,
                    unit="req/s",
                    command=COMMAND,
                    higher_is_better=True,
                    note=_bound(self.rounds[name].found[5.0]),
                )
        for name in (OURS, RUST, *PEERS):
            for rate, values in sorted(self.rounds[name].points.items()):
                self.figures.add(
                    name=name, ours=median(values), unit="ms", command=COMMAND, plot="rate", x=round(rate, 1)
                )

    def _add_rates(self, what: str, ours: str, peer: str) -> None:
        own, theirs = self.rounds[ours], self.rounds[peer]
        for threshold in sorted(THRESHOLDS_MS):
            values = (own.rates(threshold), theirs.rates(threshold))
            name = f"highest rate with p99 ≤ {threshold:g} ms, {what}, {WORK}"
            note = _bound(own.found[threshold])
            self._add_pair(name, values, peer, note, LEAST_RATE.get(peer) if threshold == 5.0 else None)
        self._add_pair(
            f"answers/s at saturation, {what}, {WORK}", (own.saturation, theirs.saturation), peer, None, None
        )

    def _add_pair(
        self,
        name: str,
        values: tuple[list[float], list[float]],
        peer: str,
        note: str | None,
        target: float | None,
    ) -> None:
        """Add the rounds of two servers; a server without a rate in one of them has no ratio."""
        ours, theirs = values
        if not ours or not theirs or len(ours) != len(theirs):
            return
        if all(ours) and all(theirs):
            self.figures.add(
                name=name,
                ours=ours,
                unit="req/s",
                peer=peer,
                theirs=theirs,
                target=target,
                higher_is_better=True,
                command=COMMAND,
                note=note,
            )
        else:
            self.figures.add(
                name=f"{name}; no ratio to {peer}",
                ours=ours,
                unit="req/s",
                command=COMMAND,
                higher_is_better=True,
                note=f"{peer} by round: {', '.join(f'{rate:,.0f}' for rate in theirs)}",
            )

    def _add_steady(self, peer: str) -> None:
        for rate in STEADY:
            theirs = self.rounds[peer].steady_ms[rate]
            ours = self.rounds[OURS].steady_ms[rate]
            highest = median_rate(self.rounds[peer].found[THRESHOLDS_MS[0]])[0] if theirs else 0.0
            # A rate that the peer does not sustain would compare a queue with an answer.
            if len(ours) != len(theirs) or not theirs or highest < rate:
                continue
            self.figures.add(
                name=f"p99 at {rate:,g} req/s, {WORK}",
                ours=ours,
                unit="ms",
                peer=peer,
                theirs=theirs,
                target=LEAST_STEADY.get(peer) if rate == 500.0 else None,
                command=COMMAND,
            )

    # --- the wire alone, and a held lock ---

    def wire_alone(self) -> None:
        """Measure what decoding, scoring, logging and encoding add to a call that does nothing."""
        with servers.hosted(self.model) as serving:
            socket = servers.over_unix_socket(serving)
            for words, load in (("TCP", serving.load), ("Unix socket", socket)):
                seconds = 0.3 if self.smoke else 2.0
                noop = servers.noop(load)
                pairs = [
                    (_p50(load.run(2000.0, seconds)), _p50(noop.run(2000.0, seconds)))
                    for _ in range(2 if self.smoke else 9)
                ]
                self.figures.add(
                    name=f"Score minus no-op at p50, {WORK}, {words}",
                    ours=[score - empty for score, empty in pairs],
                    unit="µs",
                    target=25.0,
                    command=COMMAND,
                    note=f"p50 {median(s for s, _ in pairs):.0f} and {median(n for _, n in pairs):.0f} µs",
                )

    def held_lock(self) -> None:
        """Measure p99 while a thread holds the lock, beside p99 while it does not, in turns."""
        for what, target, words in (
            ("hold", 10.0, "GIL held"),
            ("burn", None, "GIL held by a thread that also burns the server's core"),
        ):
            with servers.embedded(self.model) as serving:
                seconds = 0.8 if self.smoke else HELD_SECONDS
                pairs = _in_turns(serving, what, seconds, 2 if self.smoke else 6)
            free, held = (median(column) for column in zip(*pairs, strict=True))
            self.figures.add(
                name=f"p99 at 2,000 req/s, {words}, {WORK}",
                ours=[(with_lock / without - 1) * 100 for without, with_lock in pairs],
                unit="% more",
                target=target,
                command=COMMAND,
                note=f"p99 {free / 1000:.3f} ms free, {held / 1000:.3f} ms held, for {HELD_SECONDS:g} s each",
            )


def _in_turns(serving: Serving, what: str, seconds: float, turns: int) -> list[tuple[float, float]]:
    """Return the p99 of each free stretch and of the held one after it, microseconds."""
    steps = [{"seconds": seconds, "load": 1.0} for _ in range(2 * turns)]
    warmup = 1.0
    started = threading.Event()

    def hold() -> None:
        # The first progress comes a second after the first request, which is the end of the warm-up.
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
    """Return p99 at a rate, measured again while the generator is late."""
    window = server.window(rate, seconds)
    for _ in range(3):
        if not window.is_late:
            break
        window = server.window(rate, seconds)
    return window.p99_ms


def _saturating_rate(server: LoadedServer, rate: float) -> float:
    """Return a rate somewhat above what a server sustains: far above, a queue would outlast every timeout."""
    while server.window(rate, 0.7).holds(THRESHOLDS_MS[0]) and rate < 200_000:
        rate *= 1.5
    server.settle()
    return rate * 1.2


def _bound(found: list[Found]) -> str | None:
    return "bound by the generator: the server's rate is higher" if median_rate(found)[1] else None


def _say(text: str) -> None:
    sys.stdout.write(f"   {text}\n")
    sys.stdout.flush()
