"""Parity of online and offline feature values: `python -m loadtests.features_parity`.

One million events with duplicates, late and early ones pass through the online store in the order of
receipt, with two restarts, and 100,000 decisions are read in between. DuckDB computes the same values. All
must be equal within 1e-6; otherwise the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from loadtests.feature_events import event_table, random_decisions, random_events, random_set, seeded
from loadtests.feature_replay import replay
from scorer.features.events import EventTable
from scorer.features.parity import compare


def main() -> None:
    """Replay, compare, and print the report as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="number of events")
    parser.add_argument("--decisions", type=int, default=100_000, help="number of decisions")
    parser.add_argument("--keys", type=int, default=3000, help="number of keys of each entity")
    parser.add_argument("--features", type=int, default=27, help="number of random features beside a ratio")
    parser.add_argument("--seed", type=int, default=5, help="seed of the random numbers")
    options = parser.parse_args()
    rng = seeded(options.seed)
    declared = random_set(rng, options.features)
    events = random_events(rng, options.events, days=20, keys=options.keys)
    decisions = random_decisions(rng, options.decisions, days=22, keys=options.keys)
    with tempfile.TemporaryDirectory() as directory:
        served = replay(declared, events, decisions, Path(directory))
    tables = {kind: EventTable(event_table(declared, kind, of)) for kind, of in events.items()}
    report = compare(declared, tables, served)
    print(json.dumps(report.document(), indent=2))
    sys.exit(not report.passed)


if __name__ == "__main__":
    main()
