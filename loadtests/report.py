"""Tables and plots, from the lines of a run alone.

python -m loadtests.report                      the last run, as a Markdown table
python -m loadtests.report A.jsonl B.jsonl      several runs on one machine; a figure's last line stands
python -m loadtests.report --readme             the README's table, and everything in docs/figures
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Final

from loadtests.figures import ROOT, Figure, Run, amount, newest, read, write

README: Final = ROOT / "README.md"
KEPT: Final = ROOT / "docs/figures"
# Where in the README a part of the figures stands.
PLACES: Final = ("figures", "learning")
MISSES: Final = "loadtests/README.md#what-misses-and-why"
PICTURES: Final = {
    "ratios": "Every ratio beside its target",
    "trees": "Cost of one row by number of trees, with the ends of the caches",
    "rows": "Cost per row by rows per call",
    "actions": "One context, many actions",
    "goodput": "Goodput under overload",
    "generations": "Value of each generation over 26 simulated weeks",
    "exploration-payments": "Regret per payment by week, every rule on the same oracle",
}
_OF_LEARNING: Final = ("generations", "exploration-payments")
_HEAD: Final = ("figure", "ours", "peer", "theirs", "ratio", "target", "met")


def rows(figures: list[Figure]) -> list[tuple[str, ...]]:
    """A row of text per figure that is no point of a plot."""
    return [
        (
            figure.name,
            amount(figure.ours, figure.unit),
            figure.peer or "",
            "" if figure.theirs is None else amount(figure.theirs, figure.unit),
            "" if figure.ratio is None else f"{amount(figure.ratio, '')}×",
            _target(figure),
            {None: "", True: "yes", False: "NO"}[figure.met],
        )
        for figure in figures
        if figure.plot is None
    ]


def _target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    if figure.ratio is not None:
        return f"≥ {figure.target:g}×"
    return f"{'≥' if figure.higher_is_better else '≤'} {amount(figure.target, figure.unit)}"


def table_text(run: Run) -> str:
    """For a terminal: columns in line, numbers to the right."""
    lines = [_HEAD, *rows(run.figures)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = {1, 3, 4, 5}
    return "\n".join(
        "  ".join(
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def closing_words(run: Run) -> str:
    """What a run ends with on a terminal: the table, and how many targets were met."""
    missed = sum(figure.met is False for figure in run.figures)
    judged = sum(figure.met is not None for figure in run.figures)
    return f"{table_text(run)}\n\n{judged - missed} of {judged} targets met\n"


def table_markdown(run: Run, *, judged_only: bool = False, root: str = "") -> str:
    """The machine, then a table per group with the commands that measure it.

    Args:
        run: What was measured.
        judged_only: Leave out figures without a target.
        root: The way from the page to the repository's root, such as "../".
    """
    parts = [machine_words(run)]
    shown = [figure for figure in run.figures if figure.plot is None]
    if judged_only:
        shown = [figure for figure in shown if figure.met is not None]
    misses = 0
    for group, members in groupby(shown, key=lambda figure: figure.group):
        found = list(members)
        parts.append(
            f"**{group}**, by "
            + ", ".join(f"`{command}`" for command in dict.fromkeys(figure.command for figure in found))
            + (f", at `{run.commits[group][:12]}`" if group in run.commits else "")
            + "\n\n| "
            + " | ".join(_HEAD)
            + " |\n|---|--:|---|--:|--:|--:|---|"
        )
        lines = []
        for figure, row in zip(found, rows(found), strict=True):
            met = row[-1]
            if figure.met is False:
                misses += 1
                met = f"**missed** [¹]({root}{MISSES})"
            elif figure.met:
                met = "✓"
            name = row[0] + (f" ({figure.note})" if figure.note else "")
            lines.append("| " + " | ".join([_escaped(name), *map(_escaped, row[1:-1]), met]) + " |")
        parts[-1] += "\n" + "\n".join(lines)
    judged = sum(figure.met is not None for figure in shown)
    parts.append(
        f"{judged - misses} of {judged} targets met."
        + (f" ¹ Why a target was missed: [{MISSES.partition('#')[0]}]({root}{MISSES})." if misses else "")
    )
    return "\n\n".join(parts)


def section(run: Run, place: str = "figures") -> str:
    """What stands in the README at a place: figures with a target, and the plots.

    Those of learning are many and stand folded, below their plots.
    """
    learning = place == "learning"
    own = [figure for figure in run.figures if figure.group.startswith("learning.") is learning]
    drawn = {"ratios", *(figure.plot for figure in own)}
    pictures = [
        f"![{about}](docs/figures/{name}.png)"
        for name, about in PICTURES.items()
        if name in drawn and (name in _OF_LEARNING) is learning
    ]
    more = (
        "All figures, also those without a target: [docs/figures](docs/figures/README.md); their lines:"
        " [figures.jsonl](docs/figures/figures.jsonl)."
    )
    table = table_markdown(replace(run, figures=own), judged_only=True) + " " + more
    if not learning:
        return "\n\n".join([table, *pictures])
    summary = "<details><summary>Every figure of learning that has a target</summary>"
    return "\n\n".join([*pictures, summary, table, "</details>"])


def page_of_all(run: Run) -> str:
    """docs/figures/README.md."""
    return (
        "# Figures\n\n"
        "Made by `make figures` from [figures.jsonl](figures.jsonl), which `make bench` measured.\n\n"
        f"{table_markdown(run, root='../../')}\n"
    )


def machine_words(run: Run) -> str:
    """What it was measured on, in a sentence."""
    machine = run.machine
    caches = ", ".join(f"{name} {size / 1024:,.0f} KiB" for name, size in machine["caches"].items())
    return (
        f"Measured on {machine['cores']} cores of {machine['cpu']} ({machine['isa']}; {caches}), Linux"
        f" {machine['kernel']}, Python {machine['python']}, release build {machine['version']}."
        " A ratio says how many times better ours is than the peer in the same run."
    )


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def with_table(page: str, table: str, place: str = "figures") -> str:
    """The page with the table between the markers of a place.

    Raises:
        ValueError: The markers are not there, once each and in order.
    """
    begin, end = f"<!-- {place}: begin (make figures writes these lines) -->", f"<!-- {place}: end -->"
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"the page needs the lines {begin} and {end}, once each")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"


def main() -> None:
    """Prints the table, or puts it where it belongs."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("lines", nargs="*", type=Path, metavar="FILE.jsonl", help="default: the last run's")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw the plots into this folder")
    parser.add_argument("--readme", action="store_true", help="README's table and docs/figures")
    options = parser.parse_args()
    paths = options.lines or [newest()]
    run = read(*paths)
    if folder := KEPT if options.readme else options.plots:
        from loadtests.plots import draw

        for path in draw(run, folder):
            sys.stderr.write(f"{path}\n")
    if options.readme:
        write(run, KEPT / "figures.jsonl")
        (KEPT / "README.md").write_text(page_of_all(run))
        text = README.read_text()
        for place in PLACES:
            text = with_table(text, section(run, place), place)
        README.write_text(text)
    else:
        sys.stdout.write(table_markdown(run) + "\n")


if __name__ == "__main__":
    main()
