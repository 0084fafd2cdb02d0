"""Measure what requests cost the server: processor time per request, and a sidecar's time and memory.

The servers run on one core and the generator on another. Processor time is the user and system time of all
threads of the server's process. Score is compared with the method Noop of the same server, which has the
transport and the protocol only.
"""

from __future__ import annotations

from typing import Final

from loadtests import served
from loadtests.figures import Figures
from loadtests.openloop import Load, cores, on_generators_core
from loadtests.options import Options
from loadtests.peers import servers
from loadtests.peers.subject import subject
from loadtests.processor import memory_mb, microseconds_per_request, processor_seconds

COMMAND: Final = "make bench ARGS=footprint"
RATES: Final = (5_000.0, 15_000.0)
ROUNDS: Final = 7
SECONDS: Final = 4.0
LEAST_SHARE_OF_NOOP: Final = 0.8
MOST_SELECT_US: Final = 70.0
SIDECAR_RATE: Final = 200.0
SIDECAR_SECONDS: Final = 15.0
MOST_SIDECAR_CORE: Final = 2.0
MOST_SIDECAR_MB: Final = 100.0


def run(figures: Figures, options: Options) -> None:
    """Measure Score and Noop, SelectAction, and a sidecar at a low rate."""
    with on_generators_core():
        _scores(figures, options)
        _sidecar_and_selections(figures, options)


def _scores(figures: Figures, options: Options) -> None:
    with servers.hosted(subject()) as serving:
        loads = {"score": serving.load, "noop": servers.noop(serving.load)}
        for rate in RATES:
            spent: dict[str, list[float]] = {name: [] for name in loads}
            for _ in range(1 if options.smoke else ROUNDS):
                for name, load in loads.items():
                    spent[name].append(_spent(load, serving.process.pid, rate, options))
            figures.add(
                name=f"processor time per Score at {rate:,.0f} req/s, 500×6, dense, logged, TCP",
                ours=spent["score"],
                unit="µs",
                peer="Noop of the same server",
                theirs=spent["noop"],
                target=LEAST_SHARE_OF_NOOP,
                command=COMMAND,
            )


def _sidecar_and_selections(figures: Figures, options: Options) -> None:
    """Measure SelectAction over TCP, and a sidecar that the checkout calls over its Unix socket."""
    with served.server(served.demo_settings(options.demo), core=cores()[0], uds="s") as serving:
        pid = int(serving["pid"])
        method = served.selections(served.address(serving))
        load = Load(target=served.address(serving, unix=True), methods=[method])
        seconds = 1.0 if options.smoke else SIDECAR_SECONDS
        shares: list[float] = []
        for _ in range(1 if options.smoke else 3):
            before = processor_seconds(pid)
            load.run(SIDECAR_RATE, seconds, warmup_seconds=0.0)
            shares.append((processor_seconds(pid) - before) / seconds * 100)
        # Before the higher rates, which enlarge the buffers of connections.
        memory = memory_mb(pid)
        figures.add(
            name=f"processor time of a sidecar at {SIDECAR_RATE:g} SelectAction/s, logged, Unix socket",
            ours=shares,
            unit="% of a core",
            target=MOST_SIDECAR_CORE,
            command=COMMAND,
        )
        figures.add(
            name="memory of a sidecar with the demo's two bundles",
            ours=memory,
            unit="MB",
            target=MOST_SIDECAR_MB,
            command=COMMAND,
        )
        over_tcp = Load(target=served.address(serving), methods=[method])
        rounds = range(1 if options.smoke else ROUNDS)
        figures.add(
            name=f"processor time per SelectAction at {RATES[0]:,.0f} req/s, 132 actions, logged, TCP",
            ours=[_spent(over_tcp, pid, RATES[0], options) for _ in rounds],
            unit="µs",
            target=MOST_SELECT_US,
            command=COMMAND,
        )


def _spent(load: Load, pid: int, rate: float, options: Options) -> float:
    return microseconds_per_request(load, pid, rate, 0.5 if options.smoke else SECONDS)
