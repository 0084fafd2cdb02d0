"""`make bench-quick`: find ratios to a peer, or between two states of the server, that have become worse.

Each figure is the median over rounds in which ours and the peer take turns. A figure that is worse than its
baseline is measured two more times and judged by the median of all measurements, so that a short load of the
machine is not taken for a regression.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from loadtests import baseline
from loadtests.baseline import Outcome, Verdict
from loadtests.bench import measure, title
from loadtests.figures import RESULTS, Figure, Figures, NotReleaseError, lines
from loadtests.options import Group, Options, groups

AGAIN = 2
RUNS = 3


def main() -> int:
    """Compare figures with the baseline, or write it. Return 1 for a regression or a failed measurement."""
    parser = argparse.ArgumentParser(prog="make bench-quick", description=__doc__)
    parser.add_argument(
        "--update", action="store_true", help=f"write the baseline, the medians of {RUNS} runs"
    )
    parser.add_argument("groups", nargs="*", help="groups to measure (default: all that have quick figures)")
    asked = parser.parse_args()
    quick = [group for group in groups().values() if group.quick]
    chosen = [group for group in quick if not asked.groups or group.name in asked.groups]
    started = time.monotonic()
    try:
        return _update(chosen) if asked.update else _check(chosen)
    except NotReleaseError as error:
        sys.exit(f"error: {error}")
    finally:
        sys.stdout.write(f"   {time.monotonic() - started:.0f} s in total\n")


def _check(quick: list[Group]) -> int:
    figures = Figures(RESULTS, unpublishable="quick")
    for group in quick:
        if not measure(group, figures.path, Options(quick=True)):
            return 1
    kept = baseline.load()
    machine, measured, verdicts = _judged(figures.path, kept, quick)
    regressed = frozenset(found.key for found in verdicts if found.outcome is Outcome.REGRESSED)
    own = {figure.group for figure in measured if figure.key in regressed}
    # Both measurements are always made: to stop at the first good one would bias the median.
    for _ in range(AGAIN if regressed else 0):
        title(f"Measuring {len(regressed)} figures again that look worse")
        for group in (group for group in quick if group.name in own):
            if not measure(group, figures.path, Options(quick=True, only=regressed)):
                return 1
    machine, measured, verdicts = _judged(figures.path, kept, quick)

    title("Ratios against the baseline")
    name, more = baseline.choose(kept, machine)
    if more:
        sys.stdout.write(
            f"   no baseline for {machine['cpu']} ({machine['isa']}): the baseline of {name} is used, and"
            f" figures may be {more:.0%} worse in addition; `make bench-baseline` creates a baseline\n"
        )
    for found in verdicts:
        sys.stdout.write(f"   {_words(found)}\n")
    bad = [found.key for found in verdicts if found.outcome in {Outcome.REGRESSED, Outcome.MISSING}]
    bad += baseline.broken_counts(measured)
    if bad:
        sys.stderr.write(
            f"error: worse than the baseline, or missing: {'; '.join(bad)};"
            " if this is intended, create a new baseline with `make bench-baseline`\n"
        )
    return 1 if bad else 0


def _judged(
    path: Path, kept: dict[str, Any], quick: list[Group]
) -> tuple[dict[str, Any], list[Figure], list[Verdict]]:
    machine, measured = lines(path)
    of_group = {figure.key: figure.group for figure in measured}
    verdicts = baseline.judge(baseline.medians(measured), kept, machine, of_group)
    if len(quick) < sum(group.quick for group in groups().values()):
        # Only some groups were measured. The figures of the others are not missing.
        verdicts = [found for found in verdicts if found.outcome is not Outcome.MISSING]
    return machine, measured, verdicts


def _update(quick: list[Group]) -> int:
    runs = []
    for _ in range(RUNS):
        figures = Figures(RESULTS, unpublishable="quick")
        if not all(measure(group, figures.path, Options(quick=True)) for group in quick):
            return 1
        machine, measured = lines(figures.path)
        runs.append(baseline.medians(measured))
    baseline.save(baseline.updated(baseline.load(), machine, runs))
    sys.stdout.write(f"   {baseline.FILE}: {len(runs[0])} figures for {machine['cpu']}\n")
    return 0


def _words(found: Verdict) -> str:
    now = "" if found.worth is None else f"{found.worth:,.3g}"
    then = "" if found.before is None else f" (baseline {found.before:,.3g}, tolerance {found.tolerance:.0%})"
    return f"{found.outcome:12}  {now:>8}{then:36}  {found.key}"


if __name__ == "__main__":
    sys.exit(main())
