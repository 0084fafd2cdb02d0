"""Rates and memory of imports of outcomes: `python -m loadtests.outcome_imports`.

Each run of `scorer outcomes import` is a process of its own, whose peak memory the kernel reports. The check
(`--dry-run`) compares a file with a log that has as many decisions as the file has rows. The import reports
rows to a server on this machine, which proves each of them by the decision in its memory and writes it to
disk before it acknowledges it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from loadtests.rule_backtest import CATEGORIES, COUNTRIES, NUMBERS, build_bundle
from loadtests.served import server
from loadtests.ship import LogWriter
from scorer.client.asynchronous import AsyncClient
from scorer.registry import Registry
from scorer.v1.log_pb2 import DecisionRecord, LogRecord

CHECKPOINT: Final = "fraud.checkout"
SETTINGS: Final = f"""
[registry]
path = "registry"
[checkpoints."{CHECKPOINT}"]
kind = "score"
alias = "backtest@live"
"""
_BLOCK: Final = 20_000
_AT_ONCE: Final = 64


def main() -> int:
    """Write log and files, run the commands and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the checked files")
    parser.add_argument("--sent", type=int, default=50_000, help="rows that are reported; at most 262,144")
    parser.add_argument("--concurrency", type=int, nargs="*", default=[16, 64])
    options = parser.parse_args()
    print("| step | rows | s | rows/s | peak memory, MiB |\n|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory(prefix="outcome-imports-") as folder:
        at = Path(folder)
        names = [f"payment-{number:012}" for number in range(options.rows)]
        write_log(at / "log", names)
        for suffix in ("csv", "parquet"):
            file = write_file(at / f"outcomes.{suffix}", names)
            for logs in ([], ["--log", str(at / "log")]):
                what = f"check of a {suffix.upper()} file{' against its log' if logs else ''}"
                show(what, options.rows, *run(str(file), "--dry-run", *logs))
        registry = Registry(at / "registry")
        build_bundle(at / "bundle")
        registry.alias("backtest", "live", registry.push(at / "bundle"))
        (at / "scorer.toml").write_text(SETTINGS)
        for number in options.concurrency:
            with server(at / "scorer.toml") as serving:
                address = next(one for one in serving["grpc"] if not str(one).startswith("unix:"))
                sent = [f"sent-{number}-{place:09}" for place in range(options.sent)]
                asyncio.run(decide(address, sent))
                file = write_file(at / f"sent-{number}.csv", sent)
                seconds, memory, found = run(*(str(file), "--server", address, "--concurrency", str(number)))
                if found["results"] != {"recorded": options.sent}:
                    print(f"error: {found['results']}", file=sys.stderr)
                    return 1
                show(f"import, {number} reports at a time", options.sent, seconds, memory, found)
    return 0


def show(what: str, rows: int, seconds: float, memory: float, found: dict[str, Any]) -> None:
    """Print a line of the table."""
    if found["rows"] != rows or found["rejected"]:
        raise SystemExit(f"error: {what}: {found['rows']} rows, {found['rejected']} rejected")
    print(f"| {what} | {rows:,} | {seconds:.1f} | {rows / seconds:,.0f} | {memory:,.0f} |", flush=True)


def run(*arguments: str) -> tuple[float, float, dict[str, Any]]:
    """Run an import. Return its seconds, its peak memory in MiB and its report."""
    command = [sys.executable, "-m", "scorer.cli", "outcomes", "import", "--checkpoint", CHECKPOINT]
    began = time.monotonic()
    process = subprocess.Popen([*command, *arguments, "--json"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"error: the import ended with code {process.returncode}")
    return time.monotonic() - began, used.ru_maxrss / 1024, json.loads(text)


def write_log(directory: Path, names: list[str]) -> None:
    """Write a log with one decision of each name."""
    directory.mkdir()
    writer = LogWriter(directory)
    now = time.time_ns() // 1000 - 86_400_000_000
    for begin in range(0, len(names), _BLOCK):
        writer.append(
            [
                LogRecord(
                    decision=DecisionRecord(
                        decision_id=name,
                        checkpoint=CHECKPOINT,
                        lane="live",
                        bundle=b"\x5a" * 32,
                        decided_at_us=now + begin + place,
                        features=[0.5] * 15,
                        schema_fingerprint=7,
                        decision="approve",
                    )
                ).SerializeToString()
                for place, name in enumerate(names[begin : begin + _BLOCK])
            ]
        )
    writer.close()


def write_file(path: Path, names: list[str]) -> Path:
    """Write a file of chargebacks, of which one in ten has the value 0."""
    value = (np.arange(len(names)) % 10 > 0).astype(np.float64)
    table = pa.table({"decision_id": names, "kind": ["chargeback"] * len(names), "value": value})
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pyarrow.parquet.write_table(table, path)
    return path


async def decide(address: str, names: list[str]) -> None:
    """Have a server make one decision of each name."""
    features: dict[str, Any] = {f"n{at}": 0.5 for at in range(NUMBERS)}
    features |= {f"c{at}": COUNTRIES[0] for at in range(CATEGORIES)}
    waiting = iter(names)
    async with AsyncClient(address) as client:

        async def work() -> None:
            for name in waiting:
                await client.score(CHECKPOINT, features, request_id=name, timeout=30.0)

        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))


if __name__ == "__main__":
    sys.exit(main())
