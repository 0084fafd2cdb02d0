"""Measure the cost of traces: of 1 % of the requests, and with a collector that does not answer.

Three servers share one core. In each round a traced server and the one without traces receive requests at
the same time, each at a quarter of the capacity, so that other work of the machine delays both. The collector
and the load generator run on another core. The p99 is that of the client. The processor time is that of the
server's process per request. It includes the export, which delays the requests of both servers.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final

import grpc

from loadtests.figures import Figures
from loadtests.openloop import Load, capacity, on_generators_core
from loadtests.options import Options
from loadtests.peers import servers
from loadtests.peers.servers import Serving
from loadtests.peers.subject import subject
from loadtests.processor import processor_seconds
from loadtests.sla import Counters
from scorer.loadtest.ratesearch import median_rate

COMMAND: Final = "make bench ARGS=tracing"
THRESHOLD_MS: Final = 10.0
RATIO: Final = 0.01
MOST: Final = 1.05
ROUND_SECONDS: Final = 2.0
SECONDS: Final = 120.0
TAKEN: Final = 'scorer_trace_spans_total{outcome="exported"}'
LOST: Final = 'scorer_trace_spans_total{outcome="dropped"}'


def run(figures: Figures, options: Options) -> None:
    """Measure the p99 at half of the capacity."""
    seconds = SECONDS if options.seconds == Options.seconds else options.seconds or SECONDS
    turns = 1 if options.smoke else max(3, round(seconds / (2 * ROUND_SECONDS)))
    model = subject()
    with (
        on_generators_core(),
        _collector() as taking,
        _black_hole() as silent,
        servers.hosted(model) as plain,
        servers.hosted(model, server=_settings(taking)) as traced,
        servers.hosted(model, server=_settings(silent)) as blocked,
    ):
        load = Load(target=plain.load.target, methods=plain.load.methods, connections=8)
        rate, _ = median_rate(capacity(load, THRESHOLD_MS, start=4000.0, options=options))
        if rate <= 0:
            raise servers.ServerError(f"no rate keeps p99 within {THRESHOLD_MS:g} ms")
        rate /= 4
        rounds: dict[str, list[tuple[Round, Round]]] = {"on": [], "blocked": []}
        with ThreadPoolExecutor(2) as threads:
            for turn in range(turns):
                for kind, other in (("on", traced), ("blocked", blocked)):
                    # Neither of the two always begins.
                    both = (other, plain) if turn % 2 else (plain, other)
                    found = list(threads.map(lambda one: _round(one, rate), both))
                    pair = (found[0], found[1]) if turn % 2 else (found[1], found[0])
                    _say(kind, *pair)
                    rounds[kind].append(pair)
        exported, lost = Counters.of(traced)[TAKEN], Counters.of(blocked)[LOST]
    if not exported:
        raise servers.ServerError("no span reached the collector, so the rounds did not measure traces")
    for kind, words, spans in (
        ("on", f"traces of {RATIO:.0%}", f"{exported:,.0f} spans exported"),
        (
            "blocked",
            f"traces of {RATIO:.0%} and a collector that never answers",
            f"{lost:,.0f} spans dropped",
        ),
    ):
        for figure in ("p99", "processor"):
            ours, theirs = (
                [getattr(pair[place], f"{figure}_us") for pair in rounds[kind]] for place in (0, 1)
            )
            figures.add(
                name=f"{figure.replace('processor', 'processor time')} of Score with {words} / without",
                ours=[one / other for one, other in zip(ours, theirs, strict=True)],
                unit="×",
                target=MOST,
                command=COMMAND,
                note=f"both at the same time: {median(ours):,.1f} and {median(theirs):,.1f} µs at"
                f" {rate:,.0f} requests/s each, together half of the capacity of one core; {spans}",
            )


@dataclass(frozen=True)
class Round:
    """What one round measured, in microseconds.

    Attributes:
        p99_us: p99 of the latency that the client saw.
        processor_us: Processor time of the server's process per request.
    """

    p99_us: float
    processor_us: float


def _round(serving: Serving, rate: float) -> Round:
    load = Load(target=serving.load.target, methods=serving.load.methods, connections=8)
    pid = serving.process.child.pid
    before = processor_seconds(pid)
    report = load.run(rate, ROUND_SECONDS, warmup_seconds=0.0)
    used = processor_seconds(pid) - before
    return Round(float(report.latency_us.p99), used / max(report.requests, 1) * 1e6)


def _say(kind: str, traced: Round, plain: Round) -> None:
    sys.stdout.write(
        f"   {kind}: p99 {traced.p99_us:.0f} beside {plain.p99_us:.0f} µs, "
        f"processor {traced.processor_us:.2f} beside {plain.processor_us:.2f} µs\n"
    )
    sys.stdout.flush()


def _settings(endpoint: str) -> str:
    return f'[tracing]\nendpoint = "{endpoint}"\nratio = {RATIO}\n'


class _Export(grpc.GenericRpcHandler):
    """Accepts every batch of spans."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Return the handler of any method; an empty message is the reply that accepts everything."""
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")


@contextmanager
def _collector() -> Iterator[str]:
    """Run a collector, and yield its address."""
    server = grpc.server(ThreadPoolExecutor(2), handlers=[_Export()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait(5)


@contextmanager
def _black_hole() -> Iterator[str]:
    """Accept connections and never answer; yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[socket.socket] = []
        stopped = threading.Event()
        listener.settimeout(0.2)

        def accept() -> None:
            while not stopped.is_set():
                try:
                    held.append(listener.accept()[0])
                except TimeoutError:
                    continue

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stopped.set()
            thread.join(5)
            for connection in held:
                connection.close()
