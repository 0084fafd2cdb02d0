"""Measure the cost of encryption, identity and decision tokens: servers with and without them.

The servers run on one core in turns, the generator on another. Connections are kept, so handshakes are not
part of the figures. Score is called over mutual TLS, SelectAction also over a Unix socket, which adds only
identity and decision tokens.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Final

from loadtests import served
from loadtests.figures import Figures
from loadtests.openloop import SEARCHES, Load, cores, new_search, on_generators_core, under_load
from loadtests.options import Options
from loadtests.peers import servers
from loadtests.peers.subject import Subject, subject
from loadtests.processor import microseconds_per_request
from loadtests.served import demo_settings
from scorer import bridge
from scorer.loadtest.ratesearch import Found, limits
from scorer.token_keys import add_key

COMMAND: Final = "make bench ARGS=identity"
PLAIN: Final = "plaintext, no identity"
THRESHOLD_MS: Final = 5.0
FIRST_RATE: Final = 8_000.0
LEAST_RATE: Final = 0.8
MOST_ADDED_US: Final = 10.0
STEADY_RATE: Final = 500.0
ROUNDS: Final = 31
# Processor time is counted in steps of 10 ms, so a window has to use some hundred of them.
PROCESSOR_RATE: Final = 5_000.0
PROCESSOR_SECONDS: Final = 4.0
PROCESSOR_ROUNDS: Final = 7
DOMAIN: Final = "bench.internal"
UNIX, TCP = "Unix socket", "TCP"


def run(figures: Figures, options: Options) -> None:
    """Measure the highest rate of Score and the median of SelectAction, with and without them."""
    model = subject()
    with on_generators_core(), tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "tls"
        bridge.write_fleet(str(directory), DOMAIN, [("server", ["127.0.0.1"]), ("client", [])], 1)
        _score(figures, options, model, directory)
        _select(figures, options, directory)


def _score(figures: Figures, options: Options, model: Subject, directory: Path) -> None:
    client = _client(directory)
    found: dict[bool, list[Found]] = defaultdict(list)
    spent: dict[bool, list[float]] = defaultdict(list)
    seconds = 0.5 if options.smoke else PROCESSOR_SECONDS
    with (
        servers.hosted(model) as plain,
        servers.hosted(model, server=_settings(directory), tls=client) as secure,
    ):
        serving = {False: plain, True: secure}
        for _ in range(1 if options.smoke else SEARCHES):
            for secured, one in serving.items():
                search = new_search(one.load, start=FIRST_RATE, options=options)
                found[secured].append(search.highest(THRESHOLD_MS))
                under_load(one.load).settle()
        for _ in range(1 if options.smoke else PROCESSOR_ROUNDS):
            for secured, one in serving.items():
                spent[secured].append(
                    microseconds_per_request(one.load, one.process.pid, PROCESSOR_RATE, seconds)
                )
    figures.add(
        name=f"highest rate with p99 at most {THRESHOLD_MS:g} ms, client certificates and grants",
        ours=[one.rate for one in found[True]],
        unit="req/s",
        peer=PLAIN,
        theirs=[one.rate for one in found[False]],
        target=LEAST_RATE,
        higher_is_better=True,
        command=COMMAND,
        note=f"connections kept{limits(found[True])}{limits(found[False]).replace('; ', '; plaintext: ')}",
    )
    figures.add(
        name=f"processor time per Score at {PROCESSOR_RATE:,.0f} req/s, client certificates and grants",
        ours=spent[True],
        unit="µs",
        peer=PLAIN,
        theirs=spent[False],
        target=LEAST_RATE,
        command=COMMAND,
        note="connections kept; user and system time of the server's process",
    )


def _select(figures: Figures, options: Options, directory: Path) -> None:
    """Measure the median of SelectAction on servers that take turns."""
    settings = demo_settings(options.demo)
    keys = directory / "token-keys.json"
    add_key(keys)
    # Paths in the settings are relative to their file, so this file is in the same directory.
    secure = settings.with_name("scorer-identity.toml")
    with_tokens = f'[outcomes]\ntoken_keys = "{keys}"\n'
    secure.write_text("\n".join([settings.read_text(), _settings(directory), with_tokens]))
    core = cores()[0]
    medians: dict[tuple[str, bool], list[float]] = defaultdict(list)
    spent: dict[tuple[str, bool], list[float]] = defaultdict(list)
    seconds = 0.5 if options.smoke else PROCESSOR_SECONDS
    try:
        with (
            served.server(settings, core=core, uds="s") as without,
            served.server(secure, core=core, uds="s") as protected,
        ):
            method = served.selections(served.address(without))
            loads = {
                (link, added): Load(
                    target=served.address(serving, unix=link == UNIX),
                    methods=[method],
                    more={"tls": _client(directory)} if added and link == TCP else {},
                )
                for link in (UNIX, TCP)
                for added, serving in ((False, without), (True, protected))
            }
            for _ in range(1 if options.smoke else ROUNDS):
                for name, load in loads.items():
                    report = load.run(STEADY_RATE, 0.5 if options.smoke else 1.0)
                    medians[name].append(float(report.latency_us.p50))
            pids = {False: int(without["pid"]), True: int(protected["pid"])}
            for _ in range(1 if options.smoke else PROCESSOR_ROUNDS):
                for name, load in loads.items():
                    spent[name].append(microseconds_per_request(load, pids[name[1]], PROCESSOR_RATE, seconds))
    finally:
        secure.unlink()
    for link, words in (
        (UNIX, "identity and tokens, Unix socket"),
        (TCP, "mutual TLS, identity and tokens"),
    ):
        own, others = medians[link, True], medians[link, False]
        figures.add(
            name=f"added p50 of SelectAction at {STEADY_RATE:g} req/s by {words}",
            ours=[value - other for value, other in zip(own, others, strict=True)],
            unit="µs",
            target=MOST_ADDED_US,
            command=COMMAND,
            note=f"p50 {median(own):,.0f} and {median(others):,.0f} µs",
        )
        own, others = spent[link, True], spent[link, False]
        figures.add(
            name=f"added processor time per SelectAction at {PROCESSOR_RATE:,.0f} req/s by {words}",
            ours=[value - other for value, other in zip(own, others, strict=True)],
            unit="µs",
            target=MOST_ADDED_US,
            command=COMMAND,
            note=f"{median(own):,.1f} and {median(others):,.1f} µs",
        )


def _client(directory: Path) -> dict[str, str]:
    files = {"ca": "ca.pem", "certificate": "client.pem", "key": "client.key"}
    return {name: str(directory / file) for name, file in files.items()}


def _settings(directory: Path) -> str:
    return (
        f'[server.tls]\ncertificate = "{directory / "server.pem"}"\nkey = "{directory / "server.key"}"\n'
        f'client_ca = "{directory / "ca.pem"}"\ncrl = ["{directory / "revoked.pem"}"]\n'
        f'[identity]\ntrust_domain = "{DOMAIN}"\n[[identity.grants]]\n'
        f'principal = "spiffe://{DOMAIN}/client"\nroles = ["score", "select"]\n'
        f'[[identity.grants]]\nprincipal = "uid:{os.getuid()}"\nroles = ["select"]\n'
    )
