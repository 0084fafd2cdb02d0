"""What encryption and identity cost: the server with client certificates and grants beside the one without.

Both servers run on one core in turns, the generator on another. Connections are kept, so handshakes are not
part of the figures.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Final

from loadtests.figures import Figures
from loadtests.openloop import SEARCHES, LoadedServer, new_search, on_generators_core
from loadtests.options import Options
from loadtests.peers import servers
from loadtests.peers.subject import Subject, subject
from scorer import bridge

COMMAND: Final = "make bench ARGS=identity"
PLAIN: Final = "plaintext, no identity"
THRESHOLD_MS: Final = 5.0
FIRST_RATE: Final = 8_000.0
LEAST_RATE: Final = 0.8
MOST_ADDED_US: Final = 10.0
STEADY_RATE: Final = 500.0
ROUNDS: Final = 9
DOMAIN: Final = "bench.internal"


def run(figures: Figures, options: Options) -> None:
    """Measure the highest rate and the median of Score, with and without certificates and grants."""
    model = subject()
    with on_generators_core(), tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "tls"
        bridge.write_fleet(str(directory), DOMAIN, [("server", ["127.0.0.1"]), ("client", [])], 1)
        _measure(figures, options, model, directory)


def _measure(figures: Figures, options: Options, model: Subject, directory: Path) -> None:
    client = {
        "ca": str(directory / "ca.pem"),
        "certificate": str(directory / "client.pem"),
        "key": str(directory / "client.key"),
    }
    rates: dict[bool, list[float]] = defaultdict(list)
    medians: dict[bool, list[float]] = defaultdict(list)
    with (
        servers.hosted(model) as plain,
        servers.hosted(model, server=_settings(directory), tls=client) as secure,
    ):
        loads = {False: plain.load, True: secure.load}
        for _ in range(1 if options.smoke else ROUNDS):
            for secured, load in loads.items():
                report = load.run(STEADY_RATE, 0.5 if options.smoke else 2.0)
                medians[secured].append(float(report.latency_us.p50))
        for _ in range(1 if options.smoke else SEARCHES):
            for secured, load in loads.items():
                rates[secured].append(
                    new_search(load, start=FIRST_RATE, options=options).highest(THRESHOLD_MS).rate
                )
                LoadedServer(load).settle()
    figures.add(
        name=f"highest rate with p99 at most {THRESHOLD_MS:g} ms, client certificates and grants",
        ours=rates[True],
        unit="req/s",
        peer=PLAIN,
        theirs=rates[False],
        target=LEAST_RATE,
        higher_is_better=True,
        command=COMMAND,
        note="connections kept",
    )
    figures.add(
        name=f"added p50 at {STEADY_RATE:g} req/s by TLS and identity",
        ours=[own - other for own, other in zip(medians[True], medians[False], strict=True)],
        unit="µs",
        target=MOST_ADDED_US,
        command=COMMAND,
    )


def _settings(directory: Path) -> str:
    return (
        f'[server.tls]\ncertificate = "{directory / "server.pem"}"\nkey = "{directory / "server.key"}"\n'
        f'client_ca = "{directory / "ca.pem"}"\ncrl = ["{directory / "revoked.pem"}"]\n'
        f'[identity]\ntrust_domain = "{DOMAIN}"\n[[identity.grants]]\n'
        f'principal = "spiffe://{DOMAIN}/client"\nroles = ["score"]\n'
    )
