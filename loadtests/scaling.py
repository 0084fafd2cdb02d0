"""Measure one to three servers, called directly or through a balancer, and the costs of a decision.

::

    python -m loadtests.scaling                  # on an idle machine
    python -m loadtests.scaling --quick          # no rates: processor time and costs, in some minutes
    python -m loadtests.scaling --smoke          # every part for a moment
    python -m loadtests.scaling --save FILE      # the costs, which loadtests.sizing reads

The servers and the balancer share one core, and the generator has another. The rate therefore shows what a
balancer and further processes cost, not what further cores give. With several servers, "list" divides the
rate equally between them, as clients with a list of addresses do. The processor time is that of the
processes, so that it hardly depends on other work of the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from loadtests import costs
from loadtests.balancers import Backend, balancer, program
from loadtests.control_traffic import measure as measure_control
from loadtests.figures import Figures
from loadtests.openloop import SHORT, Load, cores, on_generators_core, under_load
from loadtests.peers import servers
from loadtests.peers.subject import Subject, subject
from loadtests.processor import processor_seconds
from loadtests.runs import add_run_options, open_run
from loadtests.sizing import Costs
from scorer.loadtest.loaded import LoadedServer
from scorer.loadtest.ratesearch import RateSearch, RateWindow, Server

COMMAND: Final = "python -m loadtests.scaling"
ROUTES: Final = ("list", "nginx", "haproxy")
THRESHOLD_MS: Final = 10.0
FIRST_RATE: Final = 4_000.0
STEADY_RATE: Final = 1_000.0
# Processor time is counted in steps of 10 ms, so a window has to use some hundred of them.
PROCESSOR_RATE: Final = 2_000.0
_IDLE_SECONDS: Final = 2.0
_WARMUP: Final = 0.2
BEHIND_A_BALANCER: Final = (
    'trusted_networks = ["127.0.0.0/8"]\nmax_inflight_per_peer = 2048\nmax_connections_per_peer = 1024\n'
)


@dataclass
class SplitServer:
    """Several servers that receive equal parts of a rate, for `RateSearch`."""

    parts: Sequence[LoadedServer]

    def window(self, rate: float, seconds: float) -> RateWindow:
        """Offer a rate for some seconds. The p99 is that of the slowest server."""
        share = rate / len(self.parts)
        processor, wall = time.process_time(), time.monotonic()
        with ThreadPoolExecutor(len(self.parts)) as pool:
            windows = list(pool.map(lambda part: part.window(share, seconds), self.parts))
        busy = (time.process_time() - processor) / (time.monotonic() - wall)
        return RateWindow(
            rate=rate,
            p99_ms=max(window.p99_ms for window in windows),
            failed=sum(window.failed for window in windows) / len(windows),
            answered=sum(window.answered for window in windows),
            lag_us=max(window.lag_us for window in windows),
            busy=busy,
        )

    def settle(self) -> None:
        """Wait until all servers have processed what an overload left."""
        for part in self.parts:
            part.settle()


@dataclass(frozen=True)
class Measured:
    """What one number of servers and one route gave.

    Attributes:
        rate: Highest rate with p99 within `THRESHOLD_MS`, requests per second; 0: none was found.
        p99_ms: p99 at `STEADY_RATE`.
        server_us: Processor time of all servers per request, beyond that without requests.
        balancer_us: Processor time of the balancer per request; 0 without one.
        log_bytes: Bytes of the decision logs per request.
    """

    rate: float
    p99_ms: float
    server_us: float
    balancer_us: float
    log_bytes: float


@contextmanager
def route(name: str, serving: Sequence[servers.Serving]) -> Iterator[tuple[Server, list[int]]]:
    """Yield the servers as the generator reaches them, and the processes of the balancer."""
    loads = [one.load for one in serving]
    if name == "list":
        yield SplitServer([under_load(load, warmup_seconds=_WARMUP) for load in loads]), []
        return
    backends = [Backend(one.load.target, one.metrics or "") for one in serving]
    with (
        tempfile.TemporaryDirectory(prefix="scorer-balancer-") as directory,
        balancer(name, backends, Path(directory), core=cores()[0]) as running,
    ):
        through: Load = replace(loads[0], target=running.address)
        yield under_load(through, warmup_seconds=_WARMUP), running.pids


def measure(name: str, serving: Sequence[servers.Serving], *, smoke: bool, searches: bool = True) -> Measured:
    """Search the highest rate, then measure p99 and processor time at steady rates."""
    with route(name, serving) as (server, of_balancer):
        rate = 0.0
        if searches:
            limits = SHORT | ({"most_seconds": 2.0, "most_windows": 4, "repeats": 1} if smoke else {})
            rate = RateSearch(server, FIRST_RATE, **limits).highest(THRESHOLD_MS).rate
        server.settle()
        window = server.window(STEADY_RATE, 1.0 if smoke else 5.0)
        pids = [one.process.pid for one in serving]
        before = _seconds(pids)
        time.sleep(_IDLE_SECONDS)
        idle = (_seconds(pids) - before) / _IDLE_SECONDS
        seconds = 2.0 if smoke else 5.0
        began = time.monotonic()
        before, of_balancer_before, log_before = _seconds(pids), _seconds(of_balancer), _log_bytes(serving)
        loaded = server.window(PROCESSOR_RATE, seconds)
        time.sleep(_WARMUP)  # the log's thread writes the last records
        used = _seconds(pids) - before - idle * (time.monotonic() - began)
        of_balancer_used = _seconds(of_balancer) - of_balancer_before
        log = _log_bytes(serving) - log_before
    # The processes also answered the warm-up of the window.
    requests = PROCESSOR_RATE * (seconds + _WARMUP) * (1 - loaded.failed)
    return Measured(
        rate=rate,
        p99_ms=window.p99_ms,
        server_us=used / requests * 1e6,
        balancer_us=of_balancer_used / requests * 1e6,
        log_bytes=log / requests,
    )


def _seconds(pids: Sequence[int]) -> float:
    return sum(processor_seconds(pid) for pid in pids)


def _log_bytes(serving: Sequence[servers.Serving]) -> int:
    folders = [Path(f"/proc/{one.process.pid}/cwd/decisions") for one in serving]
    return sum(path.stat().st_size for folder in folders for path in folder.glob("*.seg"))


def _add(figures: Figures, count: int, name: str, found: Measured) -> None:
    way = {"list": "directly"}.get(name, f"through {name}")
    words = f"{count} server{'s' if count > 1 else ''} {way}"
    note = "servers and balancer share one core; one search of short windows"
    common = {"command": COMMAND, "note": note}
    if found.rate > 0:
        figures.add(
            name=f"highest rate with p99 at most {THRESHOLD_MS:g} ms, {words}",
            ours=found.rate,
            unit="req/s",
            higher_is_better=True,
            **common,
        )
    figures.add(name=f"p99 at {STEADY_RATE:,.0f} req/s, {words}", ours=found.p99_ms, unit="ms", **common)
    figures.add(
        name=f"processor time per Score at {PROCESSOR_RATE:,.0f} req/s, {words}",
        ours=found.server_us,
        unit="µs",
        command=COMMAND,
        note=f"and {found.balancer_us:.0f} µs of the balancer",
    )
    sys.stdout.write(
        f"   {words}: {found.rate:,.0f} req/s, p99 {found.p99_ms:.2f} ms, {found.server_us:.0f} µs, "
        f"balancer {found.balancer_us:.0f} µs\n"
    )
    sys.stdout.flush()


def run(
    figures: Figures,
    counts: Sequence[int],
    routes: Sequence[str],
    model: Subject,
    *,
    smoke: bool,
    quick: bool,
) -> Costs:
    """Measure every number of servers on every route, and return the costs of a decision."""
    found: dict[tuple[int, str], Measured] = {}
    with on_generators_core(), ExitStack() as stack:
        serving: list[servers.Serving] = []
        for count in counts:
            while len(serving) < count:
                serving.append(stack.enter_context(servers.hosted(model, server=BEHIND_A_BALANCER)))
            for name in routes:
                found[count, name] = measure(name, serving, smoke=smoke, searches=not quick)
                _add(figures, count, name, found[count, name])
        request_bytes, reply_bytes = costs.wire_bytes(serving[0].load, seconds=1.0 if smoke else 3.0)
    with tempfile.TemporaryDirectory(prefix="scorer-costs-") as name:
        size = 20_000 if smoke else 100_000
        ship_us, _, table_bytes = costs.shipping(Path(name, "ship"), size)
        join_us = costs.joining(Path(name, "join"), size // 2)
    direct = found[counts[0], "list"]
    control = measure_control(100 if smoke else 1000, rounds=3)
    return Costs(
        server_us=direct.server_us,
        nginx_us=_median(found, "nginx"),
        haproxy_us=_median(found, "haproxy"),
        request_bytes=request_bytes,
        reply_bytes=reply_bytes,
        log_bytes=direct.log_bytes,
        ship_us=ship_us,
        table_bytes=table_bytes,
        join_us=join_us,
        train_ns=costs.training(20_000 if smoke else 200_000),
        status_bytes=control.status_bytes,
        status_us=control.processor_seconds / control.servers * 1e6,
        tick_seconds=control.tick_seconds,
    )


def _median(found: dict[tuple[int, str], Measured], name: str) -> float:
    from statistics import median

    values = [one.balancer_us for (_, route_), one in found.items() if route_ == name]
    return median(values) if values else 0.0


def main() -> int:
    """Measure, print, and save the costs."""
    parser = argparse.ArgumentParser(
        prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2, 3], help="numbers of servers")
    parser.add_argument(
        "--routes", nargs="+", choices=ROUTES, default=list(ROUTES), help="ways to the servers, besides list"
    )
    parser.add_argument("--quick", action="store_true", help="search no rates")
    parser.add_argument("--save", type=Path, help="file for the costs, JSON")
    add_run_options(parser)
    asked = parser.parse_args()
    missing = [name for name in asked.routes if name != "list" and program(name) is None]
    if missing:
        parser.error(
            f"{', '.join(missing)} is not installed; install Debian's package or leave it out by --routes"
        )
    figures = open_run(asked, group="scaling")
    routes = list(dict.fromkeys(["list", *asked.routes]))
    found = run(figures, sorted(asked.servers), routes, subject(), smoke=asked.smoke, quick=asked.quick)
    values = {
        name: round(value, 2) if isinstance(value, float) else value for name, value in asdict(found).items()
    }
    if asked.save is not None:
        asked.save.write_text(json.dumps(values, indent=1) + "\n")
    sys.stdout.write(f"   {json.dumps(values)}\n   {figures.path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
