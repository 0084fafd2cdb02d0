"""`make bench-quick`: has any ratio to a peer become worse by more than a quarter?

Figures are shortest times taken in turns, which another process on the machine hardly moves. One that looks
regressed all the same is measured again, and its best measurement counts: slower code stays slower.
"""

from __future__ import annotations

import argparse
import sys
import time

from loadtests import baseline
from loadtests.baseline import Outcome, Verdict
from loadtests.bench import measure, title
from loadtests.figures import RESULTS, Figures, NotReleaseError, lines
from loadtests.options import Group, Options, groups

AGAIN = 4
RUNS = 3


def main() -> int:
    """Returns 1 for a regression, or where something could not be measured."""
    parser = argparse.ArgumentParser(prog="make bench-quick", description=__doc__)
    parser.add_argument(
        "--update", action="store_true", help=f"write the baseline: the middle of {RUNS} runs"
    )
    update: bool = parser.parse_args().update
    quick = [group for group in groups().values() if group.quick]
    started = time.monotonic()
    try:
        return _update(quick) if update else _check(quick)
    except NotReleaseError as error:
        sys.exit(f"error: {error}")
    finally:
        sys.stdout.write(f"   {time.monotonic() - started:.0f} s in all\n")


def _check(quick: list[Group]) -> int:
    figures = Figures(RESULTS, unpublishable="quick")
    for group in quick:
        if not measure(group, figures.path, Options(quick=True)):
            return 1
    kept = baseline.load()
    machine, measured = lines(figures.path)
    verdicts = baseline.judge(baseline.best(measured), kept, machine)
    for _ in range(AGAIN):
        regressed = frozenset(found.key for found in verdicts if found.outcome is Outcome.REGRESSED)
        if not regressed:
            break
        title(f"Measured again, since it looks regressed: {len(regressed)}")
        for group in quick:
            if not measure(group, figures.path, Options(quick=True, only=regressed)):
                return 1
        machine, measured = lines(figures.path)
        verdicts = baseline.judge(baseline.best(measured), kept, machine)

    title("Ratios against the baseline")
    if machine["isa"] not in kept:
        sys.stdout.write(
            f"   no baseline for {machine['isa']} in {baseline.FILE.name}: nothing is judged;"
            " `make bench-baseline` on such a machine makes one\n"
        )
    elif (cpu := kept[machine["isa"]]["cpu"]) != machine["cpu"]:
        sys.stdout.write(
            f"   the baseline was measured on another processor ({cpu}):"
            f" up to {baseline.TOLERANCE_ELSEWHERE:.0%} worse is taken for its doing\n"
        )
    for found in verdicts:
        sys.stdout.write(f"   {_words(found)}\n")
    bad = [found for found in verdicts if found.outcome in {Outcome.REGRESSED, Outcome.MISSING}]
    if bad:
        sys.stderr.write(
            f"error: {len(bad)} of {len(verdicts)} ratios are worse than the baseline or gone;"
            " if that is meant, `make bench-baseline` makes a new one\n"
        )
    return 1 if bad else 0


def _update(quick: list[Group]) -> int:
    runs = []
    for _ in range(RUNS):
        figures = Figures(RESULTS, unpublishable="quick")
        if not all(measure(group, figures.path, Options(quick=True)) for group in quick):
            return 1
        machine, measured = lines(figures.path)
        runs.append(baseline.best(measured))
    baseline.save(baseline.updated(baseline.load(), machine, runs))
    sys.stdout.write(f"   {baseline.FILE}: {len(runs[0])} figures for {machine['isa']}\n")
    return 0


def _words(found: Verdict) -> str:
    now = "" if found.worth is None else f"{found.worth:,.3g}"
    then = "" if found.before is None else f" (before {found.before:,.3g})"
    return f"{found.outcome:12}  {now:>8}{then:18}  {found.key}"


if __name__ == "__main__":
    sys.exit(main())
