"""The server beside other servers: highest rates, latencies, what scoring and Python cost, a held GIL.

One server at a time on one core, the generator on another. README.md says how each peer is configured.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from statistics import median
from typing import Final

import grpc

from loadtests.figures import Figures
from loadtests.openloop import Load, Probe, highest_rate, on_generators_core
from loadtests.options import Options
from loadtests.peers import servers
from loadtests.peers.servers import ServerError, Serving
from loadtests.peers.subject import Subject, subject
from scorer.loadtest.report import Report

COMMAND: Final = "make bench ARGS=wire"
SLA_MS: Final = 5.0
# Rounds in which servers that are to be compared closely take turns; of each the best counts.
ROUNDS: Final = 3
STEADY: Final = 500.0
HELD_SECONDS: Final = 5.0
WORK: Final = "500×6"

OURS: Final = "scorer"
RUST: Final = "scorer-server (no Python)"
MLSERVER: Final = "MLServer"

Starts = Callable[[Subject], AbstractContextManager[Serving]]
PEERS: Final[dict[str, Starts]] = {
    MLSERVER: servers.mlserver,
    "BentoML (HTTP)": servers.bentoml,
    "Ray Serve": servers.ray_serve,
    "grpc.aio + XGBoost": lambda it: servers.grpc_aio(it, "xgboost"),
    "grpc.aio + scorer.Forest": lambda it: servers.grpc_aio(it, "scorer"),
}


def run(figures: Figures, options: Options) -> None:
    """Every figure of the wire.

    Raises:
        ServerError: A peer could not be measured; everything else was.
    """
    del options
    it = subject()
    with on_generators_core():
        bench = Bench(figures, it)
        bench.ours()
        bench.peers()
        bench.wire_alone()
        bench.held_lock()
    if bench.failed:
        raise ServerError("; ".join(bench.failed))


class Bench:
    """One run of the group."""

    def __init__(self, figures: Figures, it: Subject) -> None:
        self.figures = figures
        self.it = it
        self.failed: list[str] = []
        self.rates: dict[str, Probe] = {}
        self.steady_ms: dict[str, float] = {}

    # --- rates ---

    def ours(self) -> None:
        """Our two ways to run, in turns, and what else the hosted one answers."""
        for name, start in [(OURS, servers.hosted), (RUST, servers.rust)] * ROUNDS:
            with start(self.it) as serving:
                best = self.rates.get(name)
                self._search(name, serving.load, start=max(best.rate * 0.8, 1000.0) if best else 8000.0)
        with servers.hosted(self.it) as serving:
            self._steady(OURS, serving.load)
            socket = servers.over_unix_socket(serving)
            self._search(f"{OURS}, Unix socket", socket, start=8000.0)
            self._search(f"{OURS}, no-op", servers.noop(serving.load), start=8000.0)
            self._search(f"{OURS}, MLServer's bytes", servers.inference(serving.load, self.it), start=8000.0)
        ours = self.rates[OURS]
        self._add_rate("Score, Python in the process", OURS, RUST, self.rates[RUST], target=0.9)
        for name in (f"{OURS}, Unix socket", f"{OURS}, no-op"):
            self.figures.add(
                name=f"highest rate with p99 ≤ {SLA_MS:g} ms, {name.removeprefix(f'{OURS}, ')}",
                ours=self.rates[name].rate,
                unit="req/s",
                command=COMMAND,
                higher_is_better=True,
                note=_bound(self.rates[name]),
            )
        _say(f"{OURS}: {ours.rate:,.0f}/s")

    def peers(self) -> None:
        """Each peer once: its p99 at a steady rate, its highest rate."""
        for name, start in PEERS.items():
            _say(f"starting {name}")
            if not self._measured(name, start):
                self.failed.append(f"{name} was not measured")
                continue
            self._add_rate("Score", OURS, name, self.rates[name], 25.0 if name == MLSERVER else None)
            self.figures.add(
                name=f"p99 at {STEADY:g} req/s, {WORK}",
                ours=self.steady_ms[OURS],
                unit="ms",
                peer=name,
                theirs=self.steady_ms[name],
                target=4.0 if name == MLSERVER else None,
                command=COMMAND,
            )
        if MLSERVER in self.rates:
            name = f"{OURS}, MLServer's bytes"
            self._add_rate("ModelInfer, the same bytes", name, MLSERVER, self.rates[MLSERVER], 25.0)

    def _measured(self, name: str, start: Starts) -> bool:
        """Starts and measures a peer; once more if that fails: some do not come up every time."""
        for _ in range(2):
            try:
                with start(self.it) as serving:
                    self._steady(name, serving.load)
                    self._search(name, serving.load, start=500.0)
            except (ServerError, grpc.RpcError, subprocess.CalledProcessError, OSError) as error:
                sys.stdout.write(f"   {name} was not measured: {error}\n")
            else:
                return True
        return False

    def _search(self, name: str, load: Load, *, start: float) -> None:
        tried: list[Probe] = []
        found, tried = highest_rate(load, SLA_MS, start=start, told=lambda probe: _tell(name, probe))
        best = self.rates.get(name)
        if best is None or found.rate > best.rate:
            self.rates[name] = found
        for probe in tried:
            if probe.p99_ms < 1000 and (name == OURS or name in PEERS):
                self._point(name, probe)

    def _point(self, name: str, probe: Probe) -> None:
        """One rate of the plot; ours and theirs are different lines, so a peer's has no value of ours."""
        self.figures.add(
            name=name,
            ours=probe.p99_ms,
            unit="ms",
            command=COMMAND,
            plot="rate",
            x=probe.rate,
        )

    def _steady(self, name: str, load: Load) -> None:
        # The best of three: others may use the machine, nobody makes a server faster than it is.
        runs = [load.run(STEADY, 4.0, sla_ms=SLA_MS) for _ in range(3)]
        self.steady_ms[name] = min(run.latency_us.p99 for run in runs) / 1000
        _say(f"{name}: p99 {self.steady_ms[name]:.2f} ms at {STEADY:g}/s")

    def _add_rate(self, what: str, ours: str, peer: str, theirs: Probe, target: float | None) -> None:
        if not self.rates[ours].rate:
            self.failed.append(f"{ours} held no rate: {what}")
            return
        if not theirs.rate:
            # That is a result too, though no ratio.
            _say(f"{peer} keeps a p99 of {SLA_MS:g} ms at no rate: {what}")
            return
        self.figures.add(
            name=f"highest rate with p99 ≤ {SLA_MS:g} ms, {what}, {WORK}",
            ours=self.rates[ours].rate,
            unit="req/s",
            peer=peer,
            theirs=theirs.rate,
            target=target,
            higher_is_better=True,
            command=COMMAND,
            note=_bound(self.rates[ours]),
        )

    # --- the wire alone, and a held lock ---

    def wire_alone(self) -> None:
        """What decoding, scoring, logging and encoding add to a call that does nothing."""
        with servers.hosted(self.it) as serving:
            socket = servers.over_unix_socket(serving)
            for words, load in (("TCP", serving.load), ("Unix socket", socket)):
                pairs = [
                    (_p50(load.run(2000.0, 2.0)), _p50(servers.noop(load).run(2000.0, 2.0))) for _ in range(5)
                ]
                self.figures.add(
                    name=f"Score minus no-op at p50, {WORK}, {words}",
                    ours=median(score - noop for score, noop in pairs),
                    unit="µs",
                    target=25.0,
                    command=COMMAND,
                    note=f"p50 {median(s for s, _ in pairs):.0f} and {median(n for _, n in pairs):.0f} µs",
                )

    def held_lock(self) -> None:
        """p99 while a thread holds the lock, beside p99 while it does not, in turns."""
        for what, target, words in (
            ("hold", 10.0, "GIL held"),
            ("burn", None, "GIL held by a thread that also burns the server's core"),
        ):
            with servers.embedded(self.it) as serving:
                free, held = _in_turns(serving, what)
            self.figures.add(
                name=f"p99 at 2,000 req/s, {words} {HELD_SECONDS:g} s",
                ours=(held / free - 1) * 100,
                unit="% more",
                target=target,
                command=COMMAND,
                note=f"p99 {free / 1000:.3f} ms free, {held / 1000:.3f} ms held",
            )


def _in_turns(serving: Serving, what: str, turns: int = 4) -> tuple[float, float]:
    """The p99 of free and of held stretches, microseconds: of each the median."""
    steps = [{"seconds": HELD_SECONDS, "load": 1.0} for _ in range(2 * turns)]
    warmup = 1.0
    started = threading.Event()

    def hold() -> None:
        # The generator's first progress comes a second after its first request: at the warm-up's end.
        started.wait()
        for _ in range(turns):
            if pause.wait(HELD_SECONDS):
                return
            serving.process.tell(f"{what} {HELD_SECONDS - 0.2}")
            if pause.wait(HELD_SECONDS):
                return

    pause = threading.Event()
    holder = threading.Thread(target=hold)
    holder.start()
    try:
        report = serving.load.run(
            2000.0,
            2 * turns * HELD_SECONDS,
            steps=steps,
            warmup_seconds=warmup,
            progress=lambda _: started.set(),
        )
    finally:
        started.set()
        pause.set()
        holder.join()
    p99 = [step.latency_us.p99 for step in report.callers[0].steps]
    return median(p99[0::2]), median(p99[1::2])


def _p50(report: Report) -> float:
    return float(report.latency_us.p50)


def _bound(probe: Probe) -> str | None:
    return "the generator's limit: the server's is higher" if probe.generator_bound else None


def _tell(name: str, probe: Probe) -> None:
    lag = f", generator {probe.lag_us / 1000:.1f} ms late" if probe.generator_bound else ""
    held = "holds" if probe.holds else "does not hold"
    _say(f"{name}: {probe.rate:,.0f}/s p99 {probe.p99_ms:.2f} ms, {held}{lag}")


def _say(text: str) -> None:
    sys.stdout.write(f"   {text}\n")
    sys.stdout.flush()
