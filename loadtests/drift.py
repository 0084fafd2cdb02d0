"""Drift detection on streams with planted changes: `python -m loadtests.drift`.

It prints how many planted changes are found within their stated delay, in simulated streams and in payments
(the handbook's if they are present, else simulated), and the number of false alerts in months of 200 stable
features. Exit code 1: fewer than 95 % were found, or there was more than one false alert a month.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

import numpy as np

from loadtests.drifts.measure import KINDS, FoundDelays, false_alerts, planted
from loadtests.drifts.payments import CHANGES, payment_stream
from scorer.drift.settings import DetectionSettings

_LEAST_FOUND: Final = 0.95
_WANDERS: Final = (0.0, 0.05, 0.1)


def main() -> int:
    """Measure, print the tables, and compare them with the targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40, help="simulated streams of each kind of change")
    parser.add_argument("--months", type=int, default=12, help="stable months for each amount of variation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-payments", action="store_true", help="simulated streams only")
    options = parser.parse_args()
    settings = DetectionSettings()
    print("| stream | planted change | stated delay, h | found in time | delay, median | largest |")
    print("|---|---|--:|--:|--:|--:|")
    results = []
    for kind in KINDS:
        results.append(planted(kind, options.repeats, settings, seed=options.seed))
        print(_row("simulated", results[-1]), flush=True)
    rates = []
    if not options.no_payments:
        stream = payment_stream(settings)
        for change in CHANGES:
            results.append(stream.feature(change))
            print(_row(stream.name, results[-1]), flush=True)
        for found in (stream.scenario(), stream.late_labels()):
            results.append(found)
            print(_row(stream.name, found), flush=True)
        alerts, months = stream.false_alerts()
        rates.append((f"{stream.name}, 15 features and labels", alerts, months))
    for number, wander in enumerate(_WANDERS):
        alerts = 0
        for begin in range(0, options.months, 3):
            length = min(3, options.months - begin)
            seed = options.seed + 100 * number + begin
            alerts += false_alerts(length, settings, seed=seed, wander=wander)
        rates.append((f"simulated, 200 features that wander by {wander:g}", alerts, float(options.months)))
    print("\n| stable stream | months | false alerts | a month |\n|---|--:|--:|--:|")
    for name, alerts, months in rates:
        print(f"| {name} | {months:.1f} | {alerts} | {alerts / months:.2f} |")
    found_in_time, every = sum(one.found for one in results), sum(len(one.delays) for one in results)
    share = found_in_time / every
    # The rate of a short stream has no meaning: a single alert in two months is within the target.
    too_many = [name for name, alerts, months in rates if alerts > max(months, 1.0)]
    print(f"\n{found_in_time} of {every} planted changes ({share:.1%}) were found within the stated delay.")
    return 1 if share < _LEAST_FOUND or too_many else 0


def _row(stream: str, found: FoundDelays) -> str:
    delays = np.array(found.delays)
    shown = [
        f"{value:.0f}" if np.isfinite(value) else "not found" for value in (np.median(delays), delays.max())
    ]
    return (
        f"| {stream} | {found.kind.name} | {found.kind.hours} | {found.found} of {len(found.delays)} | "
        f"{shown[0]} | {shown[1]} |"
    )


if __name__ == "__main__":
    sys.exit(main())
