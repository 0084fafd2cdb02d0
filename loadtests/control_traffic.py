"""Measure what the platform receives and spends while it watches many servers.

::

    python -m loadtests.control_traffic --servers 1000

The control code is that of the platform (`Statuses` over `Fleet`), with a channel for each server. One
process simulates the servers: it answers GetStatus with a status of three checkpoints. The interval between
rounds is the default of `platform.tick_ms`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final

import grpc

from scorer.release.fleet.calls import Fleet
from scorer.release.fleet.members import Member
from scorer.release.fleet.statuses import Statuses
from scorer.release.settings import PlatformSettings
from scorer.v1 import control_pb2 as pb

CHECKPOINTS: Final = 3
ROUNDS: Final = 5
_STARTED: Final = "127.0.0.1:"


@dataclass(frozen=True)
class ControlTraffic:
    """What the platform handles at a number of servers.

    Attributes:
        servers: Number of servers.
        tick_seconds: Interval between rounds.
        calls_per_second: Status calls per second.
        status_bytes: Length of one status, bytes.
        change_bytes: Length of one change of lanes, bytes; each server receives it once per change.
        processor_seconds: Processor time of one round at the platform.
        round_seconds: Median duration of a round.
    """

    servers: int
    tick_seconds: float
    calls_per_second: float
    status_bytes: int
    change_bytes: int
    processor_seconds: float
    round_seconds: float

    @property
    def bytes_per_second(self) -> float:
        """Statuses that the platform receives, bytes per second without headers."""
        return self.calls_per_second * self.status_bytes


def status() -> pb.GetStatusResponse:
    """Return the status of a server with three checkpoints, two lanes each, and their bundles."""
    digests = [f"sha256:{number:064x}" for number in range(2 * CHECKPOINTS)]
    return pb.GetStatusResponse(
        version="0.1.0",
        build_profile="release",
        started_at_ms=1_767_571_200_000,
        ready_after_ms=812.0,
        state="SERVING",
        lane_table=42,
        checkpoints=[
            pb.CheckpointLanes(
                checkpoint=f"action.authorise-{number}",
                kind="action",
                lanes=[
                    pb.Lane(name="live", bundle=digests[2 * number], share=0.9),
                    pb.Lane(name="canary", bundle=digests[2 * number + 1], share=0.1),
                ],
                managed_by="platform",
            )
            for number in range(CHECKPOINTS)
        ],
        bundles=[pb.BundleStatus(digest=digest) for digest in digests],
    )


def change() -> pb.SetLanesRequest:
    """Return the change of one checkpoint's lanes."""
    lanes = status().checkpoints[0].lanes
    return pb.SetLanesRequest(
        checkpoint="action.authorise-0", lanes=lanes, reason="stage 2 of 4", platform="platform"
    )


def measure(servers: int, rounds: int = ROUNDS) -> ControlTraffic:
    """Read the status of simulated servers in rounds."""
    section = PlatformSettings.model_fields["tick_ms"].default / 1000
    with _simulated() as address:
        members = [Member(f"server-{number}", address) for number in range(servers)]
        fleet = Fleet(members)
        try:
            statuses = Statuses(fleet)
            _all_reachable(statuses)
            spent, took = [], []
            for _ in range(rounds):
                processor, wall = time.process_time(), time.monotonic()
                _all_reachable(statuses)
                spent.append(time.process_time() - processor)
                took.append(time.monotonic() - wall)
        finally:
            fleet.close()
    # A round that takes longer than the interval delays the next one.
    interval = max(section, median(took))
    return ControlTraffic(
        servers=servers,
        tick_seconds=section,
        calls_per_second=servers / interval,
        status_bytes=status().ByteSize(),
        change_bytes=change().ByteSize(),
        processor_seconds=median(spent),
        round_seconds=median(took),
    )


def _all_reachable(statuses: Statuses) -> None:
    # The first round opens the connections, which a loaded machine does not finish within its deadline.
    for _ in range(20):
        if all(found.reachable for found in statuses.look().values()):
            return
    raise RuntimeError("the simulated servers do not respond to all calls in time; use fewer --servers")


def _serve() -> None:
    reply = status().SerializeToString()
    handler = grpc.unary_unary_rpc_method_handler(lambda _request, _context: reply)
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("scorer.v1.ControlService", {"GetStatus": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{_STARTED}{port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop(None).wait()


@contextmanager
def _simulated() -> Iterator[str]:
    """Run the simulated servers in another process, and yield their address."""
    with subprocess.Popen(
        [sys.executable, "-m", "loadtests.control_traffic", "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            if not address.startswith(_STARTED):
                raise RuntimeError("the simulated servers did not start")
            yield address
        finally:
            process.stdin.close()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.control_traffic", description=__doc__)
    parser.add_argument("--servers", type=int, default=1000, help="number of simulated servers")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="number of measured rounds")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        _serve()
        return 0
    found = measure(asked.servers, asked.rounds)
    sys.stdout.write(
        f"{found.servers:,} servers: {found.calls_per_second:,.0f} calls/s and "
        f"{found.bytes_per_second / 1e6:.2f} MB/s at the platform; a round takes {found.round_seconds:.2f} s "
        f"and {found.processor_seconds:.2f} s of processor time, and is due every {found.tick_seconds:g} s\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
