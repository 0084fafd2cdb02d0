"""The plots of the reports, as SVG text. Matplotlib without a display."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

BLUE, ORANGE, GREY, DARK = "#2563eb", "#c2410c", "#9ca3af", "#374151"
CANDIDATE, LIVE = BLUE, GREY


def svg(figure: Figure) -> str:
    """A figure as SVG that stands inside a page; the same numbers give the same text."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "scorer", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    return re.sub(r"^.*?(?=<svg)", "", buffer.getvalue(), flags=re.DOTALL)


def new_axes(height: float = 3.0) -> tuple[Figure, Any]:
    """Return a figure of the reports' width and its only axes; `height` is in inches."""
    # No pyplot: nothing global is left behind, and threads may draw.
    figure = Figure(figsize=(5.4, height))
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, alpha=0.25)
    axes.set_axisbelow(True)
    return figure, axes


def powers(histogram: Mapping[str, Any], label: str) -> str:
    """A histogram over powers of ten."""
    figure, axes = new_axes(2.7)
    edges, counts = histogram["edges"], histogram["counts"]
    if counts:
        axes.bar(edges[:-1], counts, width=0.25, align="edge", color=BLUE, edgecolor="white", linewidth=0.5)
        low, high = int(edges[0] // 1), int(-(-edges[-1] // 1))
        axes.set_xticks(range(low, high + 1), [_power(e) for e in range(low, high + 1)])
        axes.set_yscale("log")
        axes.set_ylim(0.7)
    axes.set_xlabel(label)
    axes.set_ylabel("decisions (log)")
    return svg(figure)


def shares(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Shares of the traffic, live against candidate, one pair of bars each."""
    figure, axes = new_axes(0.6 + 0.32 * max(len(rows), 3))
    places = range(len(rows))
    axes.barh(
        [at - 0.2 for at in places],
        [row["candidate"] for row in rows],
        0.38,
        color=CANDIDATE,
        label="candidate",
    )
    axes.barh([at + 0.2 for at in places], [row["live"] for row in rows], 0.38, color=LIVE, label="live")
    axes.set_yticks(list(places), [_plain(short(str(row[name]))) for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value * 100:g}%")
    axes.set_xlabel("share of decisions")
    axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncol=2)
    return svg(figure)


def calibration(bins: Sequence[Mapping[str, float]]) -> str:
    """Predicted against observed, with the error of each tenth."""
    figure, axes = new_axes()
    predicted = [one["predicted"] for one in bins]
    observed = [one["observed"] for one in bins]
    error = [
        2 * (max(o * (1 - o), 1e-9) / max(one["rows"], 1)) ** 0.5
        for o, one in zip(observed, bins, strict=True)
    ]
    both = [*predicted, *observed]
    ends = (max(0.0, min(both) - 0.03), min(1.0, max(both) + 0.03)) if both else (0, 1)
    axes.plot(ends, ends, color=GREY, linewidth=1, linestyle="--", label="predicted = observed")
    axes.errorbar(
        predicted,
        observed,
        yerr=error,
        fmt="o",
        color=BLUE,
        markersize=4,
        linewidth=1,
        label="tenths, ± 2 s.e.",
    )
    axes.set_xlabel("predicted")
    axes.set_ylabel("observed")
    axes.legend(frameon=False, fontsize=8)
    return svg(figure)


def days(rows: Sequence[Mapping[str, float]]) -> str:
    """Both values day by day."""
    figure, axes = new_axes()
    first = rows[0]["day_ms"] if rows else 0.0
    x = [(row["day_ms"] - first) / 86_400_000 + 1 for row in rows]
    for name, colour, shift in (("candidate", CANDIDATE, -0.05), ("live", DARK, 0.05)):
        axes.errorbar(
            [one + shift for one in x],
            [row[name] for row in rows],
            yerr=[2 * row[f"{name}_error"] for row in rows],
            fmt="o-",
            color=colour,
            label=name,
            markersize=4,
            linewidth=1,
        )
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("day of the window")
    axes.set_ylabel("value")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.1%}")
    axes.legend(frameon=False, fontsize=8)
    return svg(figure)


def forest(rows: Sequence[tuple[str, float, float, float, str]], margin: float) -> str:
    """Differences with their intervals: (name, value, low, high, colour), in points."""
    figure, axes = new_axes(0.7 + 0.28 * max(len(rows), 3))
    for at, (_, value, low, high, colour) in enumerate(rows):
        axes.plot([low, high], [at, at], color=colour, linewidth=1.6)
        axes.plot([value], [at], "o", color=colour, markersize=4)
    axes.axvline(0, color=DARK, linewidth=0.8)
    axes.axvline(-margin, color=ORANGE, linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(rows)), [_plain(short(name)) for name, *_ in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("candidate - live, points (dashed: minus the margin)")
    return svg(figure)


DECISIONS = {"promote": ("promoted", "#15803d"), "mix": ("mixed in", "#b45309"), "wait": ("waits", "#b91c1c")}


def generations(rows: Sequence[Mapping[str, Any]]) -> str:
    """Value by generation, with its interval, and the live policy it was measured against."""
    figure, axes = new_axes(3.2)
    for at, row in enumerate(rows, start=1):
        colour = DECISIONS[row["decision"]][1]
        if row["low"] is not None:
            # A value is a share, whatever its interval says.
            ends = [max(row["low"], 0.0), min(row["high"], 1.0)]
            axes.plot([at, at], ends, color=colour, linewidth=1.6)
        axes.plot([at], [row["value"]], "o", color=colour, markersize=5)
        axes.plot([at], [row["live"]], "_", color=DARK, markersize=12)
    axes.plot([], [], "_", color=DARK, markersize=12, label="live at the time")
    _runs(axes, rows)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_ylabel("value")
    return svg(figure)


def differences(rows: Sequence[Mapping[str, Any]], margin: float) -> str:
    """Candidate against live by generation, in points."""
    figure, axes = new_axes(3.2)
    for at, row in enumerate(rows, start=1):
        colour = DECISIONS[row["decision"]][1]
        if row["difference_low"] is not None:
            ends = [row["difference_low"] * 100, row["difference_high"] * 100]
            axes.plot([at, at], ends, color=colour, linewidth=1.6)
        axes.plot([at], [row["difference"] * 100], "o", color=colour, markersize=5)
    axes.axhline(0, color=DARK, linewidth=0.8)
    axes.axhline(-margin, color=ORANGE, linewidth=0.8, linestyle="--")
    _runs(axes, rows)
    axes.set_ylabel("candidate - live, points")
    return svg(figure)


def _runs(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    for name, colour in DECISIONS.values():
        axes.plot([], [], "o", color=colour, markersize=5, label=name)
    # Names of many runs would run into each other.
    step = max(1, len(rows) // 12)
    places = range(1, len(rows) + 1, step)
    names = [_plain(short(str(rows[at - 1]["run"]), 18)) for at in places]
    axes.set_xticks(places, names, rotation=30, ha="right", fontsize=8)
    # Above the plot, where no point or interval can lie below it.
    axes.legend(frameon=False, fontsize=8, ncol=4, loc="lower right", bbox_to_anchor=(1.0, 1.0))


def short(name: str, most: int = 44) -> str:
    """A long name with its middle left out; actions lose the factors' names first."""
    if len(name) > most and "|" in name:
        name = " · ".join(part.partition("=")[2] or part for part in name.split("|"))
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-most // 2 + 1 :]}"


def _plain(text: str) -> str:
    # A dollar sign would begin a formula.
    return text.replace("$", r"\$")


def _power(exponent: int) -> str:
    return f"{10**exponent:,}" if 0 <= exponent <= 4 else f"{10.0**exponent:g}"
