"""Trains and judges all candidates and prints the results as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

from loadtests.figures import Figures
from loadtests.zoo import candidates, payments
from loadtests.zoo.candidates import Candidate, Score
from loadtests.zoo.judged import SIZES, Row, judge, summary

_STOPPED = 95.0
_JUDGES = (
    ("shadow", "shadow alone"),
    ("backtest", "backtest alone"),
    ("both", "backtest of all matured rows, then the shadow"),
)


def rows(source: Path | None, names: Sequence[str], *, processes: int, sizes: Sequence[int]) -> Iterator[Row]:
    """Yield the results of each candidate, in the order of `names`.

    Args:
        source: The handbook's transactions; None: simulated ones.
        names: Names of the candidates.
        processes: Number of candidates that are trained concurrently.
        sizes: Rows of the windows.
    """
    asked = [(source, name, tuple(sizes)) for name in names]
    if processes == 1:
        yield from map(_one, asked)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_one, asked)


def _one(asked: tuple[Path | None, str, tuple[int, ...]]) -> Row:
    source, name, sizes = asked
    own, live, score = _stage(source)
    fit = next(fit for fit in candidates.FITS if fit.name == name)
    return judge(own, live, candidates.make(fit, own, live, score), sizes=sizes)


@lru_cache(1)
def _stage(source: Path | None) -> tuple[payments.Payments, Candidate, Score]:
    own = payments.handbook(source) if source is not None else payments.simulated()
    live, score = candidates.live(own)
    return own, live, score


def table(found: Sequence[Row], sizes: Sequence[int] = SIZES) -> Iterator[str]:
    """Yield the lines of the Markdown table with the shares of windows in which each candidate is stopped."""
    yield (
        "| candidate | recall lost | kind | "
        + " | ".join(f"{size:,}" for size in sizes)
        + " | backtest | by |"
    )
    yield "|---|---|---|" + "---|" * (len(sizes) + 2)
    order = {"bad": 0, "between": 1, "good": 2}
    for row in sorted(found, key=lambda row: (order[row.kind], -row.lost)):
        shadow = " | ".join(f"{100 * row.stopped['shadow', size]:.0f} %" for size in sizes)
        by = sorted(row.by, key=lambda name: -row.by[name])[:3]
        backtest = "stopped" if any(name.startswith("backtest_") for name in row.by) else "-"
        names = ", ".join(f"`{name}`" for name in by) or "-"
        yield f"| {row.name} | {100 * row.lost:+.0f} % | {row.kind} | {shadow} | {backtest} | {names} |"


def report(
    figures: Figures, found: Sequence[Row], command: str, say: Callable[[str], None], sizes: Sequence[int]
) -> bool:
    """Print the tables and add the figures. Return whether a target was missed.

    Args:
        figures: Receives the figures.
        found: The results of the candidates.
        command: The command of the figures.
        say: Prints a line.
        sizes: Rows of the windows.
    """
    for line in table(found, sizes):
        say(line)
    kinds = {kind: sum(row.kind == kind for row in found) for kind in ("bad", "good", "between")}
    say(f"\n{len(found)} candidates: {kinds}\n")
    say("| judged by | rows | bad ones stopped | of those that lose over 20 % of recall | good ones passed |")
    say("|---|---|---|---|---|")
    missed = False
    for name, said in _JUDGES:
        for size in sizes:
            own = summary(found, name, size)
            shown = " | ".join(f"{100 * value:.1f} %" for value in own.values())
            say(f"| {said} | {size:,} | {shown} |")
            if name != "both":
                continue
            for what, value in own.items():
                figure = figures.add(
                    name=f"zoo of {len(found)} candidates, {what}, shadow of {size:,} rows",
                    ours=100 * value,
                    unit="%",
                    target=_STOPPED,
                    higher_is_better=True,
                    command=command,
                )
                missed |= figure.met is False
    return missed
