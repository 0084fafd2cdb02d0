"""Measure how soon lane tables and overlay revisions reach a fleet, and what its control costs.

The platform's real process control, and real control services with simulated data planes on this machine.

    python -m loadtests.fleet
    python -m loadtests.fleet --servers 100 --sick 10 --tables 5 --seconds 30
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from loadtests.fleet.measure import Tables, cores_used, fleet, platform

REACH_SECONDS = 5.0
CORES = 0.1


def main() -> None:
    """Measure, and print the figures as one JSON line; exit with 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--servers", type=int, default=100, help="number of servers")
    parser.add_argument("--sick", type=int, default=10, help="number of them that are dead or slow")
    parser.add_argument("--tables", type=int, default=5, help="lane tables and revisions, of each kind")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the steady state in seconds")
    own = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with (
            fleet(directory, own.servers, own.sick, own.tables + 1) as servers,
            platform(directory, servers) as services,
        ):
            tables = Tables(servers, services)
            tables.settle()
            reached = []
            for _ in range(own.tables):
                reached += [tables.stage(), tables.revise()]
            tables.settle()
            cores = cores_used(own.seconds)
    figures = {
        "servers": own.servers,
        "sick": own.sick,
        "tables": len(reached),
        "slowest_seconds": round(max(max(one.seconds.values()) for one in reached), 2),
        "median_seconds": round(
            statistics.median(second for one in reached for second in one.seconds.values()), 2
        ),
        "cores_in_steady_state": round(cores, 3),
    }
    print(json.dumps(figures))
    missed = figures["slowest_seconds"] > REACH_SECONDS or figures["cores_in_steady_state"] > CORES
    raise SystemExit(int(missed))


if __name__ == "__main__":
    main()
