"""Time and memory of comparing versions over millions of decisions: `python -m loadtests.comparisons`.

A log of eight weeks with outcomes is written. The platform's process then compares three versions that have
answered in turn, once for each limit of rows. The table has the time, the peak of memory and the progress as
the page shows it. Exit code 1: the peak is above 700 MiB plus 80 bytes for each decision and 200 for each
row, no progress was reported for 30 seconds, or a settled week lacks a value.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadtests.ship import LogWriter
from scorer.bundle import Feature
from scorer.bundle.check import inspect
from scorer.learn.comparison.running import ComparisonJob
from scorer.learn.comparison.settings import ComparisonSettings
from scorer.learn.labels.settings import LabelKind, LabelSettings
from scorer.release.weekly import job
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, OutcomeRecord

CHECKPOINT: Final = "fraud.checkout"
FEATURES: Final = 10
VERSIONS: Final = 3
WEEKS: Final = 8
DAY_US: Final = 86_400_000_000
WAIT_DAYS: Final = 10
BEGIN_US: Final = 1_767_571_200_000_000
"""Monday, 2026-01-05."""
END_US: Final = BEGIN_US + (7 * WEEKS + WAIT_DAYS + 5) * DAY_US
SILENCE: Final = 30.0
"""Longest time without a report of progress in seconds."""
BLOCK: Final = 10_000


def main() -> int:
    """Write the log, compare, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--decisions", type=int, default=5_000_000)
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1_000_000, 250_000], help="values of [comparison] rows"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="comparisons-") as folder:
        at = Path(folder)
        digests = [build(at / f"bundle-{number}", number) for number in range(VERSIONS)]
        began = time.monotonic()
        write_log(at, options.decisions, digests)
        size = sum(file.stat().st_size for file in (at / "log").iterdir())
        print(
            f"{options.decisions:,} decisions in {WEEKS} weeks, {VERSIONS} versions, {size / 1e9:.2f} GB, "
            f"written in {time.monotonic() - began:.0f} s\n\n"
            "| rows | s | decisions/s | peak MiB | limit MiB | reports of progress | longest silence s |\n"
            "|--:|--:|--:|--:|--:|--:|--:|"
        )
        met = True
        for rows in options.rows:
            found = compare(at, digests, rows)
            limit = 700 + (80 * options.decisions + 200 * rows) / 2**20
            print(
                f"| {rows:,} | {found.seconds:.1f} | {options.decisions / found.seconds:,.0f} | "
                f"{found.peak_mib:,.0f} | {limit:,.0f} | {found.reports} | {found.silence:.1f} |",
                flush=True,
            )
            met &= found.peak_mib <= limit and found.silence <= SILENCE and found.is_complete
    return 0 if met else 1


@dataclass(frozen=True)
class Compared:
    """What one comparison needed."""

    seconds: float
    peak_mib: float
    reports: int
    silence: float
    is_complete: bool


def compare(at: Path, digests: list[str], rows: int) -> Compared:
    """Run the platform's process of a comparison, and follow its progress.

    Args:
        at: Directory of the bundles and of the log.
        digests: The versions.
        rows: Limit on the decisions that are scored.
    """
    folder = at / f"rows-{rows}"
    settings = ComparisonSettings(weeks=WEEKS + 3, rows=rows)
    labels = LabelSettings(
        kinds=(LabelKind(kind="fraud"),), maturity=None, wait_hours=24.0 * WAIT_DAYS, unlabelled="negative"
    )
    wanted = ComparisonJob(CHECKPOINT, tuple(digests), END_US // 1000, settings, labels)
    bundles = tuple(str(at / f"bundle-{number}") for number in range(VERSIONS))
    job.write_job(folder, job.WeeklyJob(wanted, (str(at / "log"),), bundles))
    began = time.monotonic()
    # The process ends when its standard input ends.
    process = subprocess.Popen(
        [sys.executable, "-m", "scorer.release.weekly.child", str(folder)], stdin=subprocess.PIPE
    )
    reports, silence, last, seen = 0, 0.0, began, job.WeeklyProgress()
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        now = time.monotonic()
        silence = max(silence, now - last)
        if pid:
            break
        if (progress := job.read_progress(folder)) != seen:
            reports, last, seen = reports + 1, now, progress
        time.sleep(0.05)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.stdin is not None:
        process.stdin.close()
    found = job.read_result(folder)
    if process.returncode or found is None:
        raise SystemExit(f"error: the process ended with {process.returncode} and without a result")
    settled = [at for at, week in enumerate(found.weeks) if week.settled]
    values = [found.of(version, week, "backtest") for version in range(VERSIONS) for week in settled]
    is_complete = len(settled) == WEEKS and all(one is not None and one.metrics for one in values)
    return Compared(now - began, usage.ru_maxrss / 1024, reports, silence, is_complete)


def build(path: Path, number: int) -> str:
    """Build a version of a score model, and return its digest."""
    import xgboost

    from scorer.bundle import Band, Lineage, SchemaFile, build_score_bundle

    names = ["amount", *(f"f{at}" for at in range(1, FEATURES))]
    random = np.random.default_rng(number)
    rows = random.random((5_000, FEATURES), np.float32)
    data = xgboost.DMatrix(rows, label=random.random(5_000) < 0.2 * rows[:, 1], feature_names=names)
    build_score_bundle(
        path,
        name="compared",
        model=xgboost.train({"objective": "binary:logistic", "max_depth": 4, "seed": number}, data, 100),
        schema=SchemaFile(features=[Feature(name=name) for name in names]),
        bands=[Band(start=0.0, label="approve"), Band(start=0.15, label="review")],
        training=rows[:2_500],
        validation=rows[2_500:],
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="bench", run_id=f"{number}"),
    )
    return inspect(path).digest


def write_log(at: Path, decisions: int, digests: list[str]) -> None:
    """Write decisions of all versions in turn, and a report of fraud for some of them after up to 8 days."""
    info = inspect(at / "bundle-0")
    raw = [bytes.fromhex(digest.removeprefix("sha256:")) for digest in digests]
    fingerprint = int(info.schema_fingerprint, 16)
    random = np.random.default_rng(9)
    (at / "log").mkdir()
    writer, waiting = LogWriter(at / "log"), list[tuple[int, int]]()
    for first in range(0, decisions, BLOCK):
        count = min(BLOCK, decisions - first)
        rows = random.random((count, FEATURES), np.float32)
        fraud = random.random(count) < 0.04 * rows[:, 1]
        delay_us = random.uniform(1, 8, count) * DAY_US
        payloads = []
        for place, row in enumerate(rows.tolist()):
            number = first + place
            at_us = BEGIN_US + number * 7 * WEEKS * DAY_US // decisions
            record: dict[str, Any] = {"decision_id": f"p{number:010}", "checkpoint": CHECKPOINT}
            payloads.append(
                LogRecord(
                    decision=DecisionRecord(
                        **record,
                        lane="live",
                        bundle=raw[number % VERSIONS],
                        decided_at_us=at_us,
                        features=row,
                        schema_fingerprint=fingerprint,
                        score=0.1,
                        decision="approve",
                    )
                ).SerializeToString()
            )
            if fraud[place]:
                waiting.append((int(at_us + delay_us[place]), number))
        now = BEGIN_US + (first + count) * 7 * WEEKS * DAY_US // decisions
        payloads += [_report(*one) for one in waiting if one[0] < now]
        waiting = [one for one in waiting if one[0] >= now]
        writer.append(payloads)
    writer.append([_report(*one) for one in waiting])
    writer.close()


def _report(received_us: int, number: int) -> bytes:
    outcome = OutcomeRecord(
        checkpoint=CHECKPOINT,
        decision_id=f"p{number:010}",
        kind="fraud",
        value=1.0,
        received_at_us=received_us,
    )
    return LogRecord(outcome=outcome).SerializeToString()


if __name__ == "__main__":
    sys.exit(main())
