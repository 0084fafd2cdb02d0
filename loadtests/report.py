"""Pages and plots, made only from the lines of runs.

python -m loadtests.report                        print the last run as a Markdown table
python -m loadtests.report A.jsonl B.jsonl        print several runs; a later file replaces groups
python -m loadtests.report --publish [FILE ..]    add the files to docs/figures/figures.jsonl, then write
                                                  docs/benchmarks.md, README's table and the plots
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from loadtests import provenance, reasons
from loadtests.figures import ROOT, Figure, Run, UnpublishableError, amount, newest, publishable, read, write

README: Final = ROOT / "README.md"
PAGE: Final = ROOT / "docs/benchmarks.md"
KEPT: Final = ROOT / "docs/figures"
LINES: Final = KEPT / "figures.jsonl"
PICTURES: Final = {
    "ratios": "Every ratio beside its target",
    "trees": "Time of one row by number of trees, with the ends of the caches",
    "rows": "Time per row by rows per call",
    "actions": "Time of one context by number of actions",
    "rate": "p99 by request rate, open loop",
    "goodput": "Goodput under overload",
    "step": "p99 across a step of the load",
    "generations": "Value of each generation (training run) over 26 simulated weeks",
    "exploration-payments": "Regret per payment by week, every rule on the same oracle",
    "exploration-sets": "Regret on six supervised sets, every rule on the same oracle",
}
TITLES: Final = {
    "engine": "Engine",
    "wire": "Server beside other servers",
    "footprint": "Processor time and memory",
    "sla": "Overload",
    "swaps": "Bundle swaps under load",
    "observe": "Observe lanes",
    "tracing": "Traces",
    "cases": "Load cases on the demo's server",
    "admission": "Admission control",
    "policy": "Policy invariants",
    "gates": "Release gates",
}
_HEAD: Final = ("figure", "scorer", "peer", "peer's", "ratio", "interval", "target", "result")


@dataclass(frozen=True)
class Shown:
    """A row of README's table.

    Attributes:
        words: What the row compares.
        name: Pattern of the figure's name.
        peer: Pattern of the peer's name; None for a figure without a peer.
    """

    words: str
    name: str
    peer: str | None = None

    def find(self, figures: Iterable[Figure]) -> Figure | None:
        """Return the first figure that matches, or else our figure of a pair without a ratio."""
        alone = None
        for figure in figures:
            if figure.plot is not None:
                continue
            if re.fullmatch(self.name, figure.name):
                if self.peer is None and figure.peer is None:
                    return figure
                if self.peer is not None and re.fullmatch(self.peer, figure.peer or ""):
                    return figure
            elif self.peer is not None and re.fullmatch(f"{self.name}; no ratio to {self.peer}", figure.name):
                alone = alone or figure
        return alone


# Direct comparisons first, then figures that are unfavourable to scorer.
TEN: Final = (
    Shown("One row, 500 trees of depth 6, from Python", "500×6, 1 row, Python", "ONNX Runtime"),
    Shown("One row, 500 trees of depth 6, native API", "500×6, 1 row, native", "ONNX Runtime C API"),
    Shown("One row, 500 trees of depth 6, native API", "500×6, 1 row, native", "XGBoost C API"),
    Shown(
        "256 actions for one context, native API", "oracle 500×6, 256 actions, native", "ONNX Runtime C API"
    ),
    Shown(
        "Highest rate with p99 ≤ 10 ms, one core",
        "highest rate with p99 ≤ 10 ms, Score, 500×6",
        r"grpc\.aio \+ scorer\.Forest",
    ),
    Shown(
        "Highest rate with p99 ≤ 10 ms, one core, the same ModelInfer bytes",
        "highest rate with p99 ≤ 10 ms, ModelInfer, 500×6",
        "MLServer",
    ),
    Shown("p99 at 500 requests/s", "p99 at 500 req/s, 500×6", r"grpc\.aio \+ scorer\.Forest"),
    Shown(
        "p99 while a thread holds the GIL and burns the core", "p99 at 2,000 req/s, GIL held by a thread .*"
    ),
    Shown("One row, 500 categorical trees, native API", "categorical 500×6, 1 row, native", "XGBoost C API"),
    Shown(
        "Regret per payment, both without an overlay",
        "regret per payment, ours without overlay",
        "best peer without overlay.*",
    ),
)


def row(figure: Figure, *, stale: bool = False) -> tuple[str, ...]:
    """Return the cells of a figure in the order of the table's columns."""
    interval = "" if figure.low is None or figure.high is None else f"{figure.low:,g} to {figure.high:,g}"
    return (
        figure.name,
        amount(figure.ours, figure.unit),
        figure.peer or "",
        "" if figure.theirs is None else amount(figure.theirs, figure.unit),
        "" if figure.ratio is None else f"{amount(figure.ratio, '')}×",
        interval,
        _target(figure),
        "stale" if stale else figure.result,
    )


def _target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    if figure.ratio is not None:
        return f"≥ {figure.target:g}×"
    return f"{'≥' if figure.higher_is_better else '≤'} {amount(figure.target, figure.unit)}"


def table_text(run: Run) -> str:
    """Return the figures as a table for a terminal, with numbers aligned to the right."""
    cells = [_HEAD, *(row(figure) for figure in run.figures if figure.plot is None)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = {1, 3, 4, 5, 6}
    return "\n".join(
        "  ".join(
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def summary(figures: Iterable[Figure]) -> str:
    """Return how many figures have each result, in one sentence."""
    judged = [figure for figure in figures if figure.target is not None]
    settled = [figure for figure in judged if figure.settled is not False]
    met = sum(bool(figure.met) for figure in settled)
    unsettled = len(judged) - len(settled)
    return f"{met} of {len(judged)} targets met, {len(settled) - met} missed, {unsettled} not settled."


def closing_words(run: Run) -> str:
    """Return the text that a run prints at its end, the table and the summary."""
    return f"{table_text(run)}\n\n{summary([figure for figure in run.figures if figure.plot is None])}\n"


def table_markdown(figures: list[Figure], *, stale: bool = False) -> str:
    """Return a Markdown table of figures, with their notes after their names."""
    body = []
    for figure in figures:
        name, *cells = row(figure, stale=stale)
        described = f"{name} ({figure.note})" if figure.note else name
        body.append("| " + " | ".join(_escaped(cell) for cell in (described, *cells)) + " |")
    return "\n".join(["| " + " | ".join(_HEAD) + " |", "|---|--:|---|--:|--:|--:|--:|---|", *body])


def page_of_all(run: Run) -> str:
    """Return the text of docs/benchmarks.md, which contains every line of every group."""
    parts = [_INTRODUCTION, machine_words(run)]
    tables = [figure for figure in run.figures if figure.plot is None]
    drawn = {figure.plot for figure in run.figures} | ({"ratios"} if with_ratio(run) else set())
    for group, members in groupby(tables, key=lambda figure: figure.group):
        figures = list(members)
        title = TITLES.get(group) or group.replace("learning.", "Learning: ")
        stale = not _is_current(figures)
        parts.append(f"## {title}\n\n{_measured(figures, stale)}\n\n{table_markdown(figures, stale=stale)}")
        if not stale:
            parts[-1] += f"\n\n{summary(figures)}"
    parts.append(reasons.section([f for f in tables if _is_current([f])], reasons.load()))
    parts.append("## Plots")
    parts += [f"![{words}](figures/{name}.png)" for name, words in PICTURES.items() if name in drawn]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION: Final = """\
# Benchmarks

`make figures` writes this page from `docs/figures/figures.jsonl`, whose lines `make bench` and
`make bench-learning` measured. The page holds every line, favourable or not. `loadtests/README.md` explains
how each group is measured.

* **scorer**, **peer's**: the medians over the rounds of one run, in which scorer and its peers take turns.
* **ratio**: how many times better scorer is than the peer.
* **interval**: the 95 % interval of the judged value's median (with fewer than six rounds, the range).
* **result**: *met* or *missed* where the figure has a target; *not settled* where the interval is wider
  than the distance to the target (without a target: than a quarter of the figure); *worse* where the peer is
  better and there is no target; *stale* where the measured code has changed since the group's commit.

A command without `--thorough` searches each server's rates three times for some seconds, at a resolution of
4 %. `make bench ARGS=--thorough` takes hours. It searches at 1.5 % with longer windows, which narrows the
intervals and can settle figures that are shown as not settled. On a simulated server the short search finds a
rate that is 1 to 2 % lower than the thorough one's, for scorer and its peers alike."""


def machine_words(run: Run) -> str:
    """Return a sentence about the machine of the last run."""
    machine = run.machine
    sizes = ", ".join(f"{name} {size / 1024:,.0f} KiB" for name, size in machine["caches"].items())
    return (
        f"The last run used {machine['cores']} cores of {machine['cpu']} ({machine['isa']}; {sizes}), Linux"
        f" {machine['kernel']}, Python {machine['python']} and the release build {machine['version']}."
    )


def _measured(figures: list[Figure], stale: bool) -> str:
    """Return when, where and at which commit a group was measured."""
    first = figures[0]
    commands = ", ".join(f"`{command}`" for command in dict.fromkeys(figure.command for figure in figures))
    day = max(figure.at for figure in figures)[:10]
    words = f"Measured on {day} at commit `{first.commit[:12]}` by {commands}, on {first.cpu} ({first.isa})."
    if stale:
        words += " **Stale**: the measured code has changed since that commit."
    return words


def with_ratio(run: Run) -> list[Figure]:
    """Return the figures of the plot of ratios.

    Stale figures are left out. Figures of learning are left out too, because their peers differ in method and
    not in speed.
    """
    return [
        figure
        for figure in run.figures
        if figure.plot is None
        and figure.ratio is not None
        and not figure.group.startswith("learning.")
        and _is_current([figure])
    ]


def _is_current(figures: Iterable[Figure]) -> bool:
    found = {(figure.commit, figure.group) for figure in figures}
    return all(provenance.is_current(commit, group) for commit, group in found)


def table_of_ten(run: Run) -> str:
    """Return README's table."""
    lines = ["| | scorer | beside | peer | ratio | result |", "|---|--:|---|--:|--:|---|"]
    for shown in TEN:
        figure = shown.find(run.figures)
        if figure is None:
            lines.append(f"| {shown.words} | | {_peer_of(shown)} | | | not measured |")
            continue
        _, ours, peer, theirs, ratio, _, _, result = row(figure, stale=not _is_current([figure]))
        if shown.peer is not None and figure.peer is None:
            peer, theirs, ratio = _peer_of(shown), "no rate in every round", "none"
        lines.append(f"| {shown.words} | {ours} | {_escaped(peer)} | {theirs} | {ratio} | {result} |")
    found = [figure for shown in TEN if (figure := shown.find(run.figures))]
    dates = sorted({figure.at[:10] for figure in found})
    processors = sorted({f"{figure.cpu} ({figure.isa})" for figure in found})
    measured = ""
    if found:
        measured = (
            f"Measured {' to '.join(dict.fromkeys([dates[0], dates[-1]]))} on {' and '.join(processors)}. "
        )
    return (
        "\n".join(lines)
        + f"\n\n{measured}A ratio above 1 means that scorer is better. Every figure, with its"
        " interval and commit: [docs/benchmarks.md](docs/benchmarks.md)."
    )


def _peer_of(shown: Shown) -> str:
    return "" if shown.peer is None else shown.peer.replace("\\", "").replace(".*", "")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def with_table(page: str, table: str, place: str = "figures") -> str:
    """Return the page with the table between the markers of a place.

    Raises:
        ValueError: The page does not contain both markers exactly once and in order.
    """
    begin, end = f"<!-- {place}: begin (make figures writes these lines) -->", f"<!-- {place}: end -->"
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"the page needs the lines {begin} and {end}, once each")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"


def publish(paths: list[Path]) -> None:
    """Add runs to the kept lines and write the pages and plots made from them.

    Raises:
        UnpublishableError: A line is from a dirty tree or a smoke run, or its commit cannot be traced.
    """
    from loadtests.plots import draw

    run = publishable(read(*([LINES] if LINES.exists() else []), *paths))
    write(run, LINES)
    for path in draw(run, with_ratio(run), KEPT):
        sys.stderr.write(f"{path}\n")
    PAGE.write_text(page_of_all(run))
    known = reasons.load()
    for figure in reasons.misses(run.figures):
        if _is_current([figure]) and not any(reason.explains(figure) for reason in known):
            sys.stderr.write(f"no reason in {reasons.FILE.name}: {figure.key} ({figure.result})\n")
    README.write_text(with_table(README.read_text(), table_of_ten(run)))


def main() -> None:
    """Print a table or publish the lines."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "lines", nargs="*", type=Path, metavar="FILE.jsonl", help="files of runs (default: the last run)"
    )
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw the plots into this folder")
    parser.add_argument(
        "--publish", action="store_true", help="write docs/benchmarks.md, README's table and the plots"
    )
    options = parser.parse_args()
    if options.publish:
        try:
            publish(options.lines)
        except UnpublishableError as error:
            sys.exit(f"error: {error}")
        return
    run = read(*(options.lines or [newest()]))
    if options.plots:
        from loadtests.plots import draw

        for path in draw(run, with_ratio(run), options.plots):
            sys.stderr.write(f"{path}\n")
    sys.stdout.write(
        f"{machine_words(run)}\n\n{table_markdown([f for f in run.figures if f.plot is None])}\n"
    )


if __name__ == "__main__":
    main()
