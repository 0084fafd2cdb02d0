"""Swaps under load: replace bundles of 1000 trees one after another by moving an alias.

A run has three parts: without swaps, with swaps, without swaps. Every bundle is fetched, verified, scored on
its golden cases, warmed up and swapped in. The server keeps only the live bundle and the one before, so each
bundle is loaded from disk again. A second client compares each answer with the answer of the bundle that the
reply names.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadtests.engine.models import Spec, booster, sample
from loadtests.figures import Figures
from loadtests.options import WORK, Options

CHECKPOINT: Final = "fraud.checkout"
NAME: Final = "swapped"
MODEL: Final = Spec(1000, 8)
QUICK_MODEL: Final = Spec(100, 6)
# Two of them stay in memory, so each is loaded again at its next turn.
BUNDLES: Final = 4
SWAPS: Final = 50
SECONDS: Final = 60.0
QUIET_SECONDS: Final = 15.0
RATE: Final = 1000.0
READY_SECONDS: Final = 60.0
COMMAND: Final = "make bench ARGS=swaps"

_SETTINGS: Final = f"""
[server]
listen = "127.0.0.1:0"
metrics_listen = "127.0.0.1:0"
control_listen = "127.0.0.1:0"
[log]
dir = "off"
[checkpoints."{CHECKPOINT}"]
kind = "score"
alias = "{NAME}@live"
p99_ms = 20.0
fallback = {{ decision = "review", score = 0.5 }}
"""


@dataclass
class Checked:
    """Results of the client that compares answers."""

    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    fallbacks: int = 0
    bundles: set[str] = field(default_factory=set)


def run(figures: Figures, options: Options) -> None:
    """Swap bundles for a minute, or for the time in the options."""
    # The default length applies to the cases on the demo's server.
    seconds = SECONDS if options.seconds == Options.seconds else options.seconds or SECONDS
    if options.quick or options.smoke:
        seconds = 8.0 if options.quick else 4.0
    quiet = min(QUIET_SECONDS, seconds)
    model = QUICK_MODEL if options.quick or options.smoke else MODEL
    swaps = max(2, round(SWAPS * seconds / SECONDS))
    rows = sample(model)[0][:256]
    with tempfile.TemporaryDirectory(prefix="swaps-") as scratch:
        base = Path(scratch)
        digests, expected = _publish(base, rows, model)
        with _serving(base) as (process, events):
            found = _Swapping(base, process, events, digests, rows, expected).run(seconds, quiet, swaps)
    found.add_to(figures, swaps, model)


@dataclass
class _Found:
    report: Any
    checked: Checked
    resident: tuple[int, int]
    first_answers: list[dict[str, Any]]
    refused: list[dict[str, Any]]

    def add_to(self, figures: Figures, swaps: int, model: Spec) -> None:
        before, during, after = self.report.callers[0].steps
        errors = sum(self.report.errors.values()) + sum(self.report.fallbacks.values())
        note = (
            f"{swaps} swaps of {model.words} bundles at {RATE:,.0f} requests/s;"
            f" {self.checked.answers:,} answers compared"
        )
        totals = np.array([event["total_ms"] for event in self.first_answers])

        def add(
            name: str, ours: float | list[float], unit: str, target: float | None = None, **more: Any
        ) -> None:
            figures.add(name=f"swaps: {name}", ours=ours, unit=unit, target=target, command=COMMAND, **more)

        add("swaps that answered", len(totals), "", swaps, higher_is_better=True, note=note)
        errors += len(self.checked.errors) + self.checked.fallbacks + len(self.refused)
        add("errors, fallbacks and refusals", errors, "", 0)
        add("answers that are not one bundle's", len(self.checked.wrong), "", 0)
        swapping, quiet = [], []
        for window in self.report.windows:
            end = during.start + during.seconds
            chosen = swapping if during.start <= window.start < end - 1e-6 else quiet
            chosen.append(max(window.latency_us.p99, 1))
        add(
            "p99 while swapping / p99 of the same run without",
            [p99 / float(np.median(quiet)) for p99 in swapping],
            "×",
            1.2,
            note=f"{during.latency_us.p99} µs against {before.latency_us.p99} and {after.latency_us.p99}",
        )
        add(
            "resident memory after the last swap / after the second",
            self.resident[1] / self.resident[0],
            "×",
            1.1,
            note=f"{self.resident[1] >> 20} MiB against {self.resident[0] >> 20}",
        )
        add("alias change to first answer, median", float(np.median(totals)), "ms")
        stages = [name for name in self.first_answers[0] if name.endswith("_ms") and name != "total_ms"]
        shares = {name: float(np.median([event[name] for event in self.first_answers])) for name in stages}
        add(
            "alias change to first answer, p99",
            float(np.quantile(totals, 0.99)),
            "ms",
            note="median by stage: " + ", ".join(f"{name[:-3]} {ms:.1f}" for name, ms in shares.items()),
        )


class _Swapping:
    def __init__(
        self,
        base: Path,
        process: subprocess.Popen[bytes],
        events: Path,
        digests: list[str],
        rows: Any,
        expected: dict[str, Any],
    ) -> None:
        self._base, self._process, self._events = base, process, events
        self._digests, self._rows, self._expected = digests, rows, expected
        self._target = next(at for at in _event(events, "serving")["grpc"] if not at.startswith("unix:"))
        self._stop = threading.Event()
        self._checked = Checked()
        self._resident: list[int] = []

    def run(self, seconds: float, quiet: float, swaps: int) -> _Found:
        from scorer.loadtest import LoadSettings, run_load_test

        settings = LoadSettings.model_validate(
            {
                "target": self._target,
                "methods": "score",
                "features": "dense",
                "rate": RATE,
                "steps": [{"load": 1, "seconds": part} for part in (quiet, seconds, quiet)],
                "seconds": seconds + 2 * quiet,
                "warmup_seconds": 2.0,
            }
        )
        checking = threading.Thread(target=self._check)
        # The run begins with its warm-up. Half a second is added so that no swap falls into the parts
        # without swaps.
        swapping = threading.Thread(
            target=self._swap, args=(2.0 + quiet + 0.5, (seconds - 1.5) / swaps, swaps)
        )
        checking.start()
        swapping.start()
        try:
            _, report = run_load_test(settings)
        finally:
            swapping.join()
            self._stop.set()
            checking.join()
        told = [json.loads(line) for line in self._events.read_text().splitlines()]
        first = [event for event in told if event["event"] == "first_answer"][1:]
        refused = [event for event in told if event["event"] in {"candidate_refused", "bundle_refused"}]
        return _Found(report, self._checked, (self._resident[0], self._resident[-1]), first, refused)

    def _swap(self, after: float, every: float, swaps: int) -> None:
        from scorer.registry import Registry

        registry = Registry(self._base / "registry")
        start = time.monotonic() + after
        for number in range(1, swaps + 1):
            time.sleep(max(0.0, start + (number - 1) * every - time.monotonic()))
            registry.alias(NAME, "live", self._digests[number % BUNDLES])
            if number == 3:
                # From now on the server holds two bundles: the live one and the one before.
                self._resident.append(_resident(self._process.pid))
        time.sleep(every)
        deadline = time.monotonic() + 20
        while len(self._first_answers()) <= swaps and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.5)
        self._resident.append(_resident(self._process.pid))

    def _first_answers(self) -> list[str]:
        return [line for line in self._events.read_text().splitlines() if '"first_answer"' in line]

    def _check(self) -> None:
        from scorer.client import Client, ClientError

        checked = self._checked
        with Client(self._target) as client:
            while not self._stop.is_set():
                at = checked.answers % len(self._rows)
                try:
                    scored = client.score(CHECKPOINT, self._rows[at], timeout=1.0)
                except ClientError as error:
                    checked.errors.append(str(error))
                    continue
                checked.answers += 1
                checked.bundles.add(scored.served.bundle)
                if not scored.served.by_model:
                    checked.fallbacks += 1
                elif scored.score != self._expected[scored.served.bundle][at]:
                    checked.wrong.append(f"row {at}, bundle {scored.served.bundle}: {scored.score}")
                time.sleep(0.005)


def _publish(base: Path, rows: Any, model: Spec) -> tuple[list[str], dict[str, Any]]:
    """Create a registry with the bundles, the first live. Return their digests and scores of the rows."""
    from scorer.bundle import Bundle
    from scorer.registry import Registry

    registry = Registry(base / "registry")
    digests, expected = [], {}
    for variant in range(BUNDLES):
        path = _built(variant, model)
        digest = registry.push(path)
        digests.append(digest)
        bundle = Bundle.load(path)
        expected[digest] = [float(score) for score in bundle.score(rows).scores]
    registry.alias(NAME, "live", digests[0])
    return digests, expected


def _built(variant: int, spec: Spec) -> Path:
    """Return a bundle that differs from the others only in its base score. It is built once."""
    import xgboost

    from scorer.bundle import Band, Feature, Lineage, SchemaFile, build_score_bundle

    path = WORK / f"swaps/{spec.trees}x{spec.depth}-{variant}"
    if (path / "manifest.json").exists():
        return path
    document = json.loads(bytes(booster(spec).save_raw("json")))
    document["learner"]["learner_model_param"]["base_score"] = f"[{0.3 + 0.1 * variant:.1f}]"
    model = xgboost.Booster(model_file=bytearray(json.dumps(document).encode()))
    data = sample(spec)[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    build_score_bundle(
        path,
        name=NAME,
        model=model,
        schema=SchemaFile(features=[Feature(name=f"f{i}") for i in range(data.shape[1])]),
        bands=[Band(start=0.0, label="approve"), Band(start=0.5, label="review")],
        training=data[:2000],
        validation=data[2000:3000],
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="bench", run_id=f"variant-{variant}"),
        golden_cases=256,
    )
    return path


@contextmanager
def _serving(base: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    (base / "scorer.toml").write_text(_SETTINGS)
    events = base / "events.jsonl"
    with events.open("wb") as sink:
        command = [sys.executable, "-m", "scorer.cli", "serve", "--config", str(base / "scorer.toml")]
        process = subprocess.Popen(command, stderr=sink)
    try:
        _event(events, "serving", process)
        yield process, events
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _event(events: Path, name: str, process: subprocess.Popen[bytes] | None = None) -> dict[str, Any]:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and (process is None or process.poll() is None):
        for line in events.read_text().splitlines():
            found: dict[str, Any] = json.loads(line)
            if found["event"] == name:
                return found
        time.sleep(0.05)
    raise RuntimeError(f"no event {name}; the server said:\n{events.read_text()}")


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"process {pid} tells no resident memory")
