"""Measure rules and an external list of a server under load.

``python -m loadtests.lists`` compares the p99 of Score at half of the capacity

* of a bundle with 100 rules and of the same bundle without rules;
* of the server with rules while versions of a list of 10 million ids replace each other again and again, and
  without reloads.

Both are measured in rounds that take turns. Server and load generator have a core each. The versions are
stored in the registry before the measurement, because a publication runs on another machine.
``--lookup`` also measures look-ups on one thread, by a Rust program.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from loadtests.figures import ROOT
from loadtests.openloop import Load, capacity, on_generators_core
from loadtests.options import Options
from loadtests.peers import servers
from loadtests.peers.subject import Subject, subject
from scorer.bundle.check import read_schema
from scorer.bundle.lists import ELEMENTS
from scorer.bundle.revision import revise
from scorer.bundle.rules import BundleRules, RuleList
from scorer.loadtest.ratesearch import median_rate
from scorer.registry import Registry, lists

NAME: Final = "stolen_cards"
IDS: Final = 10_000_000
RULES: Final = 100
THRESHOLD_MS: Final = 10.0
MOST: Final = 1.1
SECONDS: Final = 10.0
ROUNDS: Final = 5
VERSIONS: Final = 24
PATIENCE: Final = 120.0


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        elements: Number of ids of the list.
        rules: Number of rules.
        seconds: Length of one measurement.
        rounds: Number of rounds.
        versions: Number of versions that are stored for reloads.
        rate: Requests per second; 0: half of the measured capacity.
    """

    elements: int
    rules: int
    seconds: float
    rounds: int
    versions: int
    rate: float


class Reloads:
    """Lets the server load one version after the other, as long as the context lasts."""

    def __init__(self, base: Path, digests: list[str]) -> None:
        self._registry = Registry(base / "registry")
        self._log = base / "server.log"
        self._digests = digests
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.used = 0

    def __enter__(self) -> Reloads:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def advance(self) -> None:
        """Publish the next stored version, and wait until the server uses it."""
        digest = self._digests[self.used]
        self._registry.alias(NAME, lists.ALIAS, digest)
        deadline = time.monotonic() + PATIENCE
        while not any(digest in line for line in self.loads()):
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"version {digest} is not in use; the server wrote:\n{self._log.read_text()}"
                )
            time.sleep(0.02)
        self.used += 1

    def loads(self) -> list[str]:
        """Return the events of loaded versions."""
        return [line for line in self._log.read_text().splitlines() if '"list_loaded"' in line]

    def _run(self) -> None:
        while not self._stop.is_set() and self.used < len(self._digests):
            self.advance()


def measure(plan: Plan) -> bool:
    """Measure and print; return whether reloads keep the p99 within the target."""
    model = subject()
    with tempfile.TemporaryDirectory(prefix="lists-") as made:
        ruled = _with_rules(model, Path(made) / "bundle", plan.rules)
        with on_generators_core(), servers.hosted(model) as plain, servers.hosted(ruled) as serving:
            base = serving.process.log.parent
            say(f"storing {plan.versions} versions of {plan.elements:,} ids")
            reloads = Reloads(base, _store(base, Path(made), plan))
            reloads.advance()
            rate = plan.rate or _half_of_capacity(serving.load)
            _compare_rules(plan, rate, plain.load, serving.load)
            return _compare_reloads(plan, rate, serving.load, reloads)


def _compare_rules(plan: Plan, rate: float, plain: Load, ruled: Load) -> None:
    found: dict[str, list[int]] = {"with rules": [], "without": []}
    for turn in range(plan.rounds):
        order = [("with rules", ruled), ("without", plain)]
        for name, load in order if turn % 2 else reversed(order):
            found[name].append(_p99(load, rate, plan.seconds))
    pairs = zip(found["with rules"], found["without"], strict=True)
    ratio = median(one / other for one, other in pairs)
    say(
        f"{plan.rules} rules at {rate:,.0f} requests/s: p99 {median(found['with rules']):,.0f} µs, without "
        f"{median(found['without']):,.0f} µs, ratio {ratio:.2f}"
    )


def _compare_reloads(plan: Plan, rate: float, load: Load, reloads: Reloads) -> bool:
    quiet, reloading, before = [], [], len(reloads.loads())
    for turn in range(plan.rounds):
        for is_reloading in (True, False) if turn % 2 else (False, True):
            if not is_reloading:
                quiet.append(_p99(load, rate, plan.seconds))
                continue
            with reloads:
                reloading.append(_p99(load, rate, plan.seconds))
            time.sleep(0.5)  # the version before it is freed
    ratios = [one / other for one, other in zip(reloading, quiet, strict=True)]
    events = [json.loads(line)["report"] for line in reloads.loads()[before:]]
    took = median(event["load_ms"] for event in events) if events else 0.0
    say(
        f"list of {plan.elements:,} ids, {len(events)} reloads of {took:,.0f} ms at {rate:,.0f} requests/s: "
        f"p99 {median(reloading):,.0f} µs, without reloads {median(quiet):,.0f} µs"
    )
    ratio = median(ratios)
    verdict = "PASS" if ratio <= MOST else "FAIL"
    shown = ", ".join(f"{one:.2f}" for one in ratios)
    say(f"{verdict}: ratio {ratio:.2f}, at most {MOST} (rounds: {shown})")
    return ratio <= MOST


def _p99(load: Load, rate: float, seconds: float) -> int:
    report = load.run(rate, seconds, warmup_seconds=0.5)
    failed = report.requests - report.answered + sum(report.fallbacks.values())
    if failed:
        say(f"{failed} of {report.requests} requests failed or got a fallback")
    return max(report.latency_us.p99, 1)


def _half_of_capacity(load: Load) -> float:
    rate, _ = median_rate(capacity(load, THRESHOLD_MS, start=4000.0, options=Options(smoke=True)))
    if rate <= 0:
        raise RuntimeError(f"no rate keeps the p99 within {THRESHOLD_MS:g} ms; use a faster machine")
    return rate / 2


def _with_rules(model: Subject, target: Path, rules: int) -> Subject:
    """Return the model with rules of which every fourth one reads the list."""
    features = [feature.name for feature in read_schema(model.bundle).features]
    random = np.random.default_rng(7)
    text = 'name = "measured"\ndecisions = ["review"]\n'
    for number in range(rules):
        one, other, third = random.choice(features, 3, replace=False)
        low, high = random.normal(size=2)
        listed = f' && int({third} * 1000000.0) in list("{NAME}")' if number % 4 == 0 else ""
        text += (
            f'\n[[rules]]\nid = "rule_{number}"\n'
            f"when = '{one} > {low:.3f} && {other} < {high:.3f} && score > 0.{number % 9 + 1}{listed}'\n"
            f'reason = "R{number}"\n'
        )
    list_of_ids = {NAME: RuleList(None, "int", external=True)}
    written = revise(model.bundle, target, rules=BundleRules(text, list_of_ids))
    return replace(model, bundle=target, digest=written.digest)


def _store(base: Path, scratch: Path, plan: Plan) -> list[str]:
    """Store versions of the list without using them, and return their digests."""
    registry = Registry(base / "registry")
    file = scratch / "ids.txt"
    ids = np.random.default_rng(11).integers(-(10**7), 10**7, plan.elements)
    with file.open("w") as writer:
        for part in np.array_split(ids, 100):
            writer.write("\n".join(map(str, part.tolist())) + "\n")
    # The content is that of the first version. A server loads each version completely, whatever it contains.
    first = lists.put(registry, NAME, file, kind="int", now_ms=lambda: 0)[0]
    stored, digests = base / "registry/bundles" / first.digest.removeprefix("sha256:"), [first.digest]
    unchecked = Registry(registry.path, verify=_stated)
    for number in range(2, plan.versions + 1):
        with tempfile.TemporaryDirectory(dir=scratch) as made:
            directory = Path(made)
            (directory / ELEMENTS).hardlink_to(stored / ELEMENTS)
            lists.write_manifest(directory, replace(first, version=number))
            digests.append(unchecked.push(directory))
    return digests


def _stated(directory: Path) -> str:
    manifest: Any = json.loads((directory / "manifest.json").read_bytes())
    return str(manifest["digest"])


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Measure with the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elements", type=int, default=IDS, help="number of ids of the list")
    parser.add_argument("--rules", type=int, default=RULES, help="number of rules")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="number of rounds")
    parser.add_argument("--versions", type=int, default=VERSIONS, help="number of versions of the list")
    parser.add_argument(
        "--rate", type=float, default=0.0, help="requests per second; 0: half of the capacity"
    )
    parser.add_argument("--lookup", action="store_true", help="measure look-ups on one thread as well")
    given = parser.parse_args()
    plan = Plan(given.elements, given.rules, given.seconds, given.rounds, given.versions, given.rate)
    if given.lookup:
        cargo = shutil.which("cargo") or "cargo"
        command = [cargo, "run", "--release", "--quiet", "--package", "scorer-rules", "--example", "speed"]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        say("\n".join(line for line in done.stdout.splitlines() if "list" in line or "look-up" in line))
    return 0 if measure(plan) else 1


if __name__ == "__main__":
    sys.exit(main())
