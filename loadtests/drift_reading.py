"""Processor time of reading logs for drift: `python -m loadtests.drift_reading`.

A backlog of decisions with 40 features is read twice: the records alone, and by the monitor, which counts
them. The difference between both is what the counting takes. The first one is what a shared reading of
platform and monitor could save. Shares are those of one core at the given rate of decisions.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Final

import numpy as np

from loadtests.ship import LogWriter
from scorer.bundle import Feature
from scorer.bundle.check import inspect
from scorer.drift.counting import BundleFacts, CheckpointPlan
from scorer.drift.monitor import Monitor
from scorer.drift.settings import DriftSettings
from scorer.drift.state import DriftState
from scorer.log.source.directories import LogDirectory, log_directories
from scorer.v1.log_pb2 import DecisionRecord, LogRecord

CHECKPOINT: Final = "fraud.checkout"
FEATURES: Final = 40
_BLOCK: Final = 10_000


def main() -> None:
    """Write the backlog, read it and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--decisions", type=int, default=300_000)
    parser.add_argument("--rate", type=int, default=5_000, help="decisions per second of the shares")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="drift-reading-") as folder:
        at = Path(folder)
        write_log(at, options.decisions)
        log = log_directories([at / "log"]).logs[0]
        reading = min(read(log) for _ in range(options.rounds)) / options.decisions
        counting = min(count(at, log, number) for number in range(options.rounds)) / options.decisions
    print("| step | µs of a core per decision | share of a core at the rate |\n|---|--:|--:|")
    for name, seconds in (("records are read", reading), ("monitor reads and counts", counting)):
        print(f"| {name} | {1e6 * seconds:.1f} | {seconds * options.rate:.1%} |")
    print(f"\n{options.decisions:,} decisions with {FEATURES} features, rate {options.rate:,}/s")


def write_log(at: Path, decisions: int) -> None:
    """Write a bundle and the log of its decisions within one day."""
    import xgboost

    from scorer.bundle import Band, Lineage, SchemaFile, build_score_bundle

    names = [f"f{number}" for number in range(FEATURES)]
    random = np.random.default_rng(1)
    rows = random.random((1000, FEATURES), np.float32)
    data = xgboost.DMatrix(rows, label=rows[:, 0] > 0.5, feature_names=names)
    build_score_bundle(
        at / "bundle",
        name="reading",
        model=xgboost.train({"objective": "binary:logistic", "max_depth": 2, "seed": 1}, data, 4),
        schema=SchemaFile(features=[Feature(name=name) for name in names]),
        bands=[Band(start=0.0, label="approve"), Band(start=0.5, label="decline")],
        training=rows[:600],
        validation=rows[600:],
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="bench", run_id="bench"),
    )
    info = inspect(at / "bundle")
    digest, fingerprint = bytes.fromhex(info.digest[7:]), int(info.schema_fingerprint, 16)
    (at / "log").mkdir()
    writer = LogWriter(at / "log")
    begin = time.time_ns() // 1000 - 86_400_000_000
    for first in range(0, decisions, _BLOCK):
        some = random.random((min(_BLOCK, decisions - first), FEATURES), np.float32)
        writer.append(
            [
                LogRecord(
                    decision=DecisionRecord(
                        decision_id=f"payment-{first + place:012}",
                        checkpoint=CHECKPOINT,
                        lane="live",
                        bundle=digest,
                        decided_at_us=begin + (first + place) * 86_000_000_000 // decisions,
                        features=row,
                        schema_fingerprint=fingerprint,
                        score=row[0],
                        decision="approve",
                    )
                ).SerializeToString()
                for place, row in enumerate(some.tolist())
            ]
        )
    writer.close()


def read(log: LogDirectory) -> float:
    """Read all records. Return the seconds of processor time."""
    began = time.process_time()
    for identity in log.identities:
        deque(log.records(identity, 0), maxlen=0)
    return time.process_time() - began


def count(at: Path, log: LogDirectory, number: int) -> float:
    """Read and count all records with a new state. Return the seconds of processor time."""
    state = DriftState(at / f"state-{number}.sqlite")
    monitor = Monitor(
        state,
        lambda: [log],
        lambda: {CHECKPOINT: CheckpointPlan({"score": "fraud"}, False, (), {"score": 1080.0})},
        BundleFacts(lambda _: at / "bundle"),
        DriftSettings(),
        now=lambda: time.time_ns() // 1000,
    )
    began = time.process_time()
    result = monitor.read()
    seconds = time.process_time() - began
    state.close()
    if not result.is_complete or result.problems:
        raise SystemExit(f"error: the log was not read to its end: {result.problems}")
    return seconds


if __name__ == "__main__":
    main()
