"""Measure `scorer ship`: decisions per second on one core, and the lag at a constant rate.

::

    python -m loadtests.ship                             # both, Delta in a directory
    python -m loadtests.ship --actions 64                # decisions with 64 actions
    python -m loadtests.ship --kafka 127.0.0.1:9092      # Kafka instead

The program writes a log of synthetic decisions in the documented format. The throughput is that of one
process on one core (`sched_setaffinity`) that ships a whole log with ``--once``, its start included; the
processor time of the child process that compacts the tables is listed separately. For the lag, this program
appends decisions at the rate while a shipper runs. A lag is the age of the oldest decision of a delivery when
the delivery ends, so it includes the interval of the deliveries.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from scorer.v1.log_pb2 import DecisionRecord, LogRecord

SEGMENT_RECORDS: Final = 100_000
MOST_LAG: Final = 5.0
LEAST_RATE: Final = 20_000
_TICK: Final = 0.02
_METRIC: Final = re.compile(r'^scorer_ship_(\w+)\{sink="\w+"\} (\S+)$', re.MULTILINE)


def _crc_table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(0x82F63B78), np.uint32(0))
    return table


def checksums(rows: list[bytes]) -> list[int]:
    """Return the CRC32C of each row. Rows of equal length are computed together."""
    table = _crc_table()
    by_length: dict[int, list[int]] = defaultdict(list)
    for at, row in enumerate(rows):
        by_length[len(row)].append(at)
    found = [0] * len(rows)
    for length, places in by_length.items():
        joined = b"".join(rows[at] for at in places)
        columns = np.ascontiguousarray(np.frombuffer(joined, np.uint8).reshape(len(places), length).T)
        crc = np.full(len(places), 0xFFFFFFFF, np.uint32)
        for column in columns:
            crc = (crc >> 8) ^ table[(crc ^ column) & 0xFF]
        for at, value in zip(places, (crc ^ np.uint32(0xFFFFFFFF)).tolist(), strict=True):
            found[at] = value
    return found


class LogWriter:
    """Writes the segments of a log as docs/decision-log.md describes them.

    Args:
        directory: An empty directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = uuid.uuid4().bytes
        self._number, self._records, self._segment = 0, SEGMENT_RECORDS, b""
        self._descriptor = -1
        self.sequence = 0

    def append(self, payloads: list[bytes]) -> None:
        """Append records with one write."""
        if self._records >= SEGMENT_RECORDS:
            self._begin()
        ends = [
            struct.pack("<IQ", 1 << 24 | len(payload), self.sequence + at)
            for at, payload in enumerate(payloads, 1)
        ]
        crcs = checksums([payload + self._segment + end for payload, end in zip(payloads, ends, strict=True)])
        frames = bytearray()
        for payload, end, crc in zip(payloads, ends, crcs, strict=True):
            frames += struct.pack("<I", crc) + end + payload
            frames += bytes(-len(frames) % 8)
        os.write(self._descriptor, frames)
        self.sequence += len(payloads)
        self._records += len(payloads)

    def close(self) -> None:
        """Close the newest segment."""
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def _begin(self) -> None:
        self.close()
        self._number, self._records, self._segment = self._number + 1, 0, uuid.uuid4().bytes
        first = self.sequence + 1
        header = b"scorerDL" + struct.pack("<HH4x", 1, 96) + self._log + self._segment
        header += struct.pack("<QqQQ12x", self._number, time.time_ns() // 1000, first, first)
        path = self._directory / f"{self._number:010}-{self._segment.hex()}.seg"
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        os.write(self._descriptor, header + struct.pack("<I", checksums([header])[0]))


def decisions(count: int, actions: int, chance: random.Random) -> list[bytes]:
    """Return encoded decisions of this moment: 40 features, or 24 features and a pmf over the actions."""
    found = []
    for _ in range(count):
        record = DecisionRecord(
            decision_id=f"{chance.getrandbits(128):032x}",
            checkpoint="action.authorise" if actions else "fraud.checkout",
            lane="live",
            lane_table=17,
            bundle=b"\x5a" * 32,
            decided_at_us=time.time_ns() // 1000,
            entity=f"{chance.getrandbits(64):016x}",
            features=[chance.random() for _ in range(24 if actions else 40)],
            schema_fingerprint=0xFEDC_BA98_7654_3210,
            reasons=["velocity_1h", "amount"],
            exec_us=37,
        )
        if actions:
            weights = [chance.random() for _ in range(actions)]
            record.pmf.extend(weight / sum(weights) for weight in weights)
            record.action_index, record.action = actions - 1, "3ds-challenge"
            record.propensity = record.pmf[-1]
        else:
            record.margin, record.score, record.decision = -1.25, chance.random(), "approve"
        found.append(LogRecord(decision=record).SerializeToString())
    return found


def command(arguments: argparse.Namespace, work: Path, *more: str) -> list[str]:
    """Return a command of the shipper, whose settings are in the folder."""
    sink = (
        f'[kafka]\nservers = "{arguments.kafka}"\ntopic = "bench-{work.name}"\npositions = '
        f'"bench-{work.name}-p"\n'
        if arguments.kafka
        else '[delta]\nurl = "lake"\n'
    )
    (work / "ship.toml").write_text(f'[ship]\nserver = "bench"\nmetrics_listen = "127.0.0.1:0"\n{sink}')
    return [sys.executable, "-m", "scorer.cli", "ship", "--config", str(work / "ship.toml"), *more]


def throughput(arguments: argparse.Namespace, work: Path) -> float:
    """Return decisions per second of one process on one core."""
    (work / "decisions").mkdir()
    writer = LogWriter(work / "decisions")
    chance = random.Random(1)
    size = 0
    while writer.sequence < arguments.decisions:
        payloads = decisions(min(10_000, arguments.decisions - writer.sequence), arguments.actions, chance)
        size += sum(map(len, payloads))
        writer.append(payloads)
    writer.close()
    core = min(os.sched_getaffinity(0))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    done = subprocess.run(
        command(arguments, work, "--once"),
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - began
    if done.returncode:
        sys.exit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    rate = arguments.decisions / seconds
    print(
        f"throughput: {rate:,.0f} decisions/s on one core, {arguments.decisions / used:,.0f} per second of "
        f"processor time ({arguments.decisions:,} of {size / arguments.decisions:.0f} bytes in {seconds:.1f} "
        f"s, peak {after.ru_maxrss / 1024:.0f} MB)"
    )
    return rate


def lag(arguments: argparse.Namespace, work: Path) -> float:
    """Return the greatest lag in seconds at a rate."""
    (work / "decisions").mkdir()
    writer = LogWriter(work / "decisions")
    chance = random.Random(2)
    writer.append(decisions(1, arguments.actions, chance))
    output = work / "output.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(command(arguments, work), stdout=file, stderr=file)
    try:
        url = _wait_for(lambda: re.search(r"metrics: (\S+)", output.read_text()))[1]
        began, worst, appended, asked = time.monotonic(), 0.0, 0, 0.0
        delays: list[float] = []
        while (now := time.monotonic()) - began < arguments.seconds:
            due = int((now - began) * arguments.rate) - appended
            if due > 0:
                writer.append(decisions(due, arguments.actions, chance))
                appended += due
            if now - asked > 0.5:
                asked = now
                delays.append(_metrics(url).get("delay_seconds", 0.0))
            time.sleep(max(_TICK - (time.monotonic() - now), 0.0))
        ended = time.monotonic()
        _wait_for(lambda: _metrics(url).get("sequence") == writer.sequence + 1)
        found = _metrics(url)
        # The first delivery includes the start of the process.
        worst = max([*delays[4:], found["delay_seconds"]])
        used = float(_processor_seconds(process.pid))
        print(
            f"lag at {appended / (ended - began):,.0f} decisions/s: at most {worst:.2f} s, median "
            f"{float(np.median(delays[4:])):.2f} s ({found['commits_total']:.0f} commits, "
            f"{used / (ended - began):.0%} of a core, {_resident_mb(process.pid):.0f} MB; the rest was "
            f"delivered {time.monotonic() - ended:.1f} s after the last decision)"
        )
        return worst
    finally:
        process.terminate()
        process.wait(60)
        writer.close()


def _wait_for(condition, seconds: float = 120.0):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            sys.exit("the shipper does not get on")
        time.sleep(0.05)
    return found


def _metrics(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - a loopback address
        return {name: float(value) for name, value in _METRIC.findall(answer.read().decode())}


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mb(process: int) -> float:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> int:
    """Measure, and return 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.ship", description="Measure scorer ship.")
    parser.add_argument("--decisions", type=int, default=400_000, help="decisions of the throughput")
    parser.add_argument("--rate", type=int, default=5_000, help="decisions per second of the lag")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the measurement of the lag")
    parser.add_argument("--actions", type=int, default=0, help="actions of each decision; 0: scores")
    parser.add_argument("--kafka", default="", help="brokers to ship to, instead of a Delta table")
    parser.add_argument("--part", choices=("throughput", "lag"), help="measure only this")
    arguments = parser.parse_args()
    missed = False
    for name in [arguments.part] if arguments.part else ["throughput", "lag"]:
        with tempfile.TemporaryDirectory(prefix="scorer-ship-") as work:
            if name == "throughput":
                missed |= throughput(arguments, Path(work)) < LEAST_RATE
            else:
                missed |= lag(arguments, Path(work)) > MOST_LAG
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
