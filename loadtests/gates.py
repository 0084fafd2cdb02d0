"""`make bench-gates`: measure which candidates the standard gates fail, and their false-alarm rate.

The first part uses the zoo (loadtests/zoo), candidates of known quality. The second part uses windows whose
bundle is the live one. Every window is simulated with its own seed, so a run can be repeated exactly. The
peer is the rule of thumb that a PSI above 0.1 is a shift, over the same windows and the same bins.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import numpy as np

from examples.datasets import HANDBOOK, dataset
from loadtests import windows
from loadtests.figures import Figures
from loadtests.runs import add_run_options, open_run
from loadtests.zoo import run as zoo
from loadtests.zoo.candidates import FITS
from loadtests.zoo.judged import SIZES as ZOO_SIZES
from scorer.release.gates.defaults import SCORE
from scorer.release.gates.evaluate import evaluate
from scorer.release.gates.evidence import ShadowEvidence
from scorer.release.gates.grammar import read_all
from scorer.release.model import GateResult, GateSpec, Outcome
from scorer.release.readout.canary import measure_canary
from scorer.stats import distances

SIZES: Final = (1_000, 10_000, 100_000)
WINDOWS: Final = 1_000
_TARGET = 2.0
_THUMB = 0.1
_COMMAND = "make bench-gates"
_FOUND = 0.9
_CANARY: Final = tuple(spec for gate, spec in zip(read_all(SCORE), SCORE, strict=True) if gate.names.canary)


@dataclass(frozen=True)
class Alarms:
    """Results of the windows of one size."""

    windows: int
    failed: int
    by_gate: dict[str, int]
    passed: int
    thumb: int

    @property
    def rate(self) -> float:
        """False-alarm rate in per cent."""
        return 100 * self.failed / self.windows


def judged(evidence: ShadowEvidence, specs: Sequence[GateSpec] = SCORE) -> tuple[GateResult, ...]:
    """Return the results of the deciding gates."""
    return tuple(result for result in evaluate(specs, evidence) if not result.dry_run)


def canary_judged(evidence: ShadowEvidence, settled: Collection[str] = ()) -> tuple[GateResult, ...]:
    """Evaluate the gates of a canary at an interim analysis.

    Args:
        evidence: Observations of the canary.
        settled: Metrics that have passed on pairs in the shadow.
    """
    return evaluate(_CANARY, evidence, repeated=True, measured_by=measure_canary, settled=settled)


def after_its_shadow(evidence: ShadowEvidence) -> tuple[GateResult, ...]:
    """Evaluate the gates of a canary whose shadow has passed."""
    return canary_judged(evidence, {spec.metric for spec in _CANARY})


def by_thumb(evidence: ShadowEvidence) -> bool:
    """Whether the rule of thumb detects a shift."""
    assert evidence.reference is not None
    own = evidence.shadow.score[evidence.shadow.scored]
    binned = distances.by_reference(evidence.reference.counts, evidence.reference.edges, own)
    return distances.psi(binned.second, binned.first) > _THUMB


def alarms(
    rows: int,
    count: int,
    make: Callable[[int, np.random.Generator, str], ShadowEvidence],
    judge: Callable[[ShadowEvidence], Sequence[GateResult]] = judged,
    *,
    salt: int = 0,
    first: int = 0,
) -> Alarms:
    """Evaluate `count` windows of one size from window `first` on, with the shapes of scores in turn."""
    failed = passed = thumb = 0
    by_gate: dict[str, int] = {}
    for window in range(first, first + count):
        random = np.random.default_rng([salt, rows, window])
        evidence = make(rows, random, windows.SHAPES[window % len(windows.SHAPES)])
        results = judge(evidence)
        wrong = [result.metric for result in results if result.outcome is Outcome.FAIL]
        failed += bool(wrong)
        passed += all(result.outcome is Outcome.PASS for result in results)
        thumb += by_thumb(evidence)
        for metric in wrong:
            by_gate[metric] = by_gate.get(metric, 0) + 1
    return Alarms(count, failed, by_gate, passed, thumb)


def _some(place: int, rows: int, count: int, first: int) -> Alarms:
    """Evaluate a part of the windows of a case, in a separate process."""
    _, make, judge = CASES[place]
    return alarms(rows, count, make, judge, first=first)


def together(place: int, rows: int, count: int, pool: ProcessPoolExecutor | None, parts: int) -> Alarms:
    """Evaluate the windows of a case in several processes. The windows do not depend on their number."""
    if pool is None:
        return _some(place, rows, count, 0)
    starts = [count * part // parts for part in range(parts + 1)]
    tasks = [pool.submit(_some, place, rows, end - start, start) for start, end in pairwise(starts)]
    found = [task.result() for task in tasks]
    by_gate: Counter[str] = Counter()
    for one in found:
        by_gate.update(one.by_gate)
    failed, passed, thumb = (
        sum(getattr(one, name) for one in found) for name in ("failed", "passed", "thumb")
    )
    return Alarms(count, failed, dict(by_gate), passed, thumb)


def usual(rows: int, random: np.random.Generator, shape: str) -> ShadowEvidence:
    """Simulate the same bundle twice, with times in bursts that are well within the SLA."""
    times = windows.latencies(rows, random, bursts=True)
    return windows.same_bundle(rows, random, shape=shape, exec_us=times)


def small_reference(rows: int, random: np.random.Generator, shape: str) -> ShadowEvidence:
    """Simulate the same bundle twice, validated on only 500 rows."""
    return windows.same_bundle(rows, random, shape=shape, reference_rows=500)


def on_the_line(rows: int, random: np.random.Generator, shape: str) -> ShadowEvidence:
    """Simulate the same bundle twice, with a p99 of the execution that equals the SLA.

    This is the hardest case for a gate on times.
    """
    times = windows.latencies(rows, random)
    return replace(windows.same_bundle(rows, random, shape=shape, exec_us=times), sla_us=_p99())


def canary(rows: int, random: np.random.Generator, shape: str) -> ShadowEvidence:
    """Simulate the same bundle on two lanes with different requests."""
    return windows.canary(rows, random, shape=shape)


CASES: Final = (
    ("shadow", usual, judged),
    ("shadow, validated on 500 rows", small_reference, judged),
    ("shadow, p99 exactly at the SLA", on_the_line, judged),
    ("canary, judged at every look", canary, canary_judged),
    ("canary after its shadow, at every look", canary, after_its_shadow),
)


def _p99() -> float:
    """Return the p99 of `latencies`, from four million samples."""
    global _KNOWN  # noqa: PLW0603 - computed once
    if _KNOWN is None:
        _KNOWN = float(np.quantile(windows.latencies(4_000_000, np.random.default_rng(99)), 0.99))
    return _KNOWN


_KNOWN: float | None = None


# --- power ---


def shifted(rows: int, random: np.random.Generator, size: float) -> ShadowEvidence:
    """Simulate scores that are `size` logits higher than in validation, with the same bands."""
    live = windows.fraud_scores(rows, random)
    evidence = windows.same_bundle(rows, random)
    own = 1 / (1 + np.exp(-(np.log(live / (1 - live)) + size)))
    shadow = windows.observed(rows, random, live=live, own=own)
    return replace(evidence, shadow=shadow, control=windows.twin(shadow, random))


def slow(rows: int, random: np.random.Generator, size: float) -> ShadowEvidence:
    """Simulate a p99 of the execution of `size` times the SLA."""
    times = windows.latencies(rows, random) * (size * 5_000 / _p99())
    return windows.same_bundle(rows, random, exec_us=times)


def broken(rows: int, random: np.random.Generator, size: float) -> ShadowEvidence:
    """Simulate NaN in a share `size` of the scores."""
    evidence = windows.same_bundle(rows, random)
    score = np.where(random.random(rows) < size, np.nan, evidence.shadow.score)
    return replace(evidence, shadow=replace(evidence.shadow, score=score))


def featureless(rows: int, random: np.random.Generator, size: float) -> ShadowEvidence:
    """Simulate a feature that differs from live in a share `size` of the rows."""
    evidence = windows.same_bundle(rows, random)
    differs = (random.random(rows) < size).astype(np.int64)
    return replace(evidence, shadow=replace(evidence.shadow, differs=differs))


POWER: Final = (
    ("scores shifted by", "logits", shifted, (0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2)),
    ("p99 above the SLA by", "%", slow, (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0)),
    ("NaN scores in", "%", broken, (0.00005, 0.0002, 0.0005, 0.001, 0.003, 0.01, 0.03)),
    ("another feature in", "%", featureless, (0.0012, 0.0015, 0.002, 0.003, 0.005, 0.01, 0.02, 0.04)),
)


def least_found(
    rows: int,
    count: int,
    make: Callable[[int, np.random.Generator, float], ShadowEvidence],
    sizes: Sequence[float],
) -> float | None:
    """Return the smallest size from which on nine of ten windows fail; None if the largest does not."""
    found = None
    for size in reversed(sizes):
        failed = 0
        for window in range(count):
            evidence = make(rows, np.random.default_rng([rows, window, round(size * 1e6)]), size)
            failed += any(result.outcome is Outcome.FAIL for result in judged(evidence))
        if failed < _FOUND * count:
            break
        found = size
    return found


def _said(size: float | None, unit: str) -> str:
    if size is None:
        return "-"
    if unit == "logits":
        return f"{size:g}"
    return f"{100 * (size - 1 if size > 1 else size):.3g} %"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the measurement, and return 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog=_COMMAND, description=__doc__)
    parser.add_argument("--windows", type=int, default=WINDOWS)
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--cases", type=int, nargs="*", help=f"of 1 to {len(CASES)}; none: all")
    parser.add_argument("--power", action="store_true", help="also look for the least that is found")
    parser.add_argument("--no-zoo", action="store_true")
    parser.add_argument("--no-windows", action="store_true")
    parser.add_argument(
        "--transactions",
        type=Path,
        default=dataset(HANDBOOK),
        help="the handbook's; simulated where there are none",
    )
    parser.add_argument("--processes", type=int, default=2)
    add_run_options(parser)
    asked = parser.parse_args(arguments)
    figures = open_run(asked, group="gates")
    names = [fit.name for fit in FITS]
    if asked.smoke:
        asked.windows, asked.sizes, asked.power, asked.processes = 2, asked.sizes[:1], False, 1
        names = names[:2]
    missed = False
    if not asked.no_zoo:
        source = asked.transactions if asked.transactions.is_file() else None
        sizes = [size for size in asked.sizes if size in ZOO_SIZES]
        found = list(zoo.rows(source, names, processes=asked.processes, sizes=sizes))
        missed |= zoo.report(figures, found, _COMMAND, _say, sizes) and not asked.smoke
    if not asked.no_windows:
        missed |= _windows(asked, figures)
    if asked.power:
        _power(figures, asked.sizes, max(asked.windows // 10, 20))
    _say(f"\n{figures.path}")
    return int(missed)


def _windows(asked: argparse.Namespace, figures: Figures) -> bool:
    """Compare the live bundle with itself, and return whether a target was missed."""
    missed = False
    parts = asked.processes
    pool = ProcessPoolExecutor(parts, mp_context=get_context("spawn")) if parts > 1 else None
    _say(f"{'A/A pair':40} {'rows':>8} {'alarms':>8} {'all pass':>9} {'PSI > 0.1':>10}  which, seconds")
    for at, (name, _, _) in enumerate(CASES):
        if asked.cases and at + 1 not in asked.cases:
            continue
        for rows in asked.sizes:
            began = time.monotonic()
            found = together(at, rows, asked.windows, pool, parts)
            which = ", ".join(f"{metric} {count}" for metric, count in sorted(found.by_gate.items()))
            _say(
                f"{name:40} {rows:8,} {found.rate:7.2f}% {100 * found.passed / found.windows:8.1f}% "
                f"{100 * found.thumb / found.windows:9.1f}%  {which or '-'}, {time.monotonic() - began:.0f}"
            )
            figure = figures.add(
                name=f"false gate alarms, {name}, {rows:,} rows",
                ours=found.rate,
                unit="%",
                target=_TARGET,
                command=_COMMAND,
                note=f"{found.windows:,} windows; PSI > 0.1 alone alarms in "
                f"{100 * found.thumb / found.windows:.1f} %",
            )
            missed |= figure.met is False
    if pool is not None:
        pool.shutdown()
    return missed


def _power(figures: Figures, sizes: Sequence[int], count: int) -> None:
    _say(f"\nleast that fails in nine of ten windows ({count} each)")
    _say(f"{'':34} " + " ".join(f"{rows:>9,}" for rows in sizes))
    for name, unit, make, steps in POWER:
        own = [least_found(rows, count, make, steps) for rows in sizes]
        _say(f"{name:34} " + " ".join(f"{_said(one, unit):>9}" for one in own))
        for rows, one in zip(sizes, own, strict=True):
            if one is not None:
                figures.add(
                    name=f"found in nine of ten windows: {name}, {rows:,} rows",
                    ours=one if unit == "logits" else 100 * (one - 1 if one > 1 else one),
                    unit=unit,
                    command=_COMMAND,
                )


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
