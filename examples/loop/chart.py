"""The comparison as a chart, an HTML page and a file of numbers."""

from __future__ import annotations

import base64
import html
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from examples.loop.comparison import ARMS, Comparison

_COLOURS = ("#8a8f98", "#0b6e4f")
_NAMES = ("rules per issuer, A/B-tested (old)", "bandit, retrained weekly (new)")


def write(found: Comparison, folder: Path) -> tuple[Path, Path]:
    """Write `compare.png`, `compare.html` and `compare.json`. Return the paths of the first two."""
    folder.mkdir(parents=True, exist_ok=True)
    picture, page = folder / "compare.png", folder / "compare.html"
    _draw(found, picture)
    page.write_text(_page(found, picture), encoding="utf-8")
    (folder / "compare.json").write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")
    return picture, page


def _draw(found: Comparison, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (rates, test) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", width_ratios=(3, 2))
    weeks = [week.week for week in found.weeks]
    for k in range(2):
        told = [week.rates[k] for week in found.weeks]
        value = [100 * rate.value for rate in told]
        spread = [
            [100 * (rate.value - rate.low) for rate in told],
            [100 * (rate.high - rate.value) for rate in told],
        ]
        rates.errorbar(weeks, value, spread, fmt="o-", capsize=3, color=_COLOURS[k], label=_NAMES[k])
        rates.plot(weeks, [100 * rate.truth for rate in told], ":", color=_COLOURS[k], linewidth=1)
    rates.plot(
        weeks, [100 * week.best for week in found.weeks], color="#c9a227", linewidth=1, label="best possible"
    )
    if weeks[-1] >= 6:
        rates.axvline(5.5, color="#bbbbbb", linestyle=(0, (4, 3)), linewidth=1)
        rates.annotate("issuers drift", (5.5, 0.02), xycoords=("data", "axes fraction"), fontsize=8)
    rates.set_xticks(weeks)
    rates.set_xlabel("week")
    rates.set_ylabel("authorised, % of outcomes (95 %; dotted: truth)")
    rates.set_title("Conversion per week, A/B test on shoppers")
    rates.legend(fontsize=8)
    shown = [day for day in found.days if day.high - day.low < 1]
    days = [day.day for day in shown]
    test.fill_between(
        days,
        [100 * day.low for day in shown],
        [100 * day.high for day in shown],
        color=_COLOURS[1],
        alpha=0.2,
        linewidth=0,
    )
    test.plot(days, [100 * day.value for day in shown], color=_COLOURS[1])
    test.axhline(0, color="#666666", linewidth=1)
    middle = 100 * found.days[-1].value
    test.set_ylim(middle - 12, middle + 12)
    test.set_xlabel("day")
    test.set_ylabel("new - old, points")
    test.set_title("Read every day: 95 % confidence sequence")
    for axes in (rates, test):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#eeeeee")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def rows(found: Comparison) -> list[list[str]]:
    """Return a row per week: both rates with intervals, the difference by truth, the best possible."""
    out = []
    for week in found.weeks:
        old, new = week.rates
        out.append(
            [
                str(week.week),
                *(
                    f"{100 * rate.value:.1f} % ({100 * rate.low:.1f} to {100 * rate.high:.1f})"
                    for rate in (old, new)
                ),
                f"{100 * (new.truth - old.truth):+.2f}",
                f"{100 * week.best:.1f} %",
            ]
        )
    return out


COLUMNS = ("week", *ARMS, "new - old by truth, points", "best possible")


def verdict(found: Comparison) -> list[str]:
    """Return the result of the test in sentences."""
    last = found.days[-1]
    decided = next((day.day for day in found.days if day.low > 0 or day.high < 0), None)
    old, new = found.ratio.counts
    return [
        f"new - old: {100 * last.value:+.2f} points, {100 * last.low:+.2f} to {100 * last.high:+.2f}"
        " (95 %, valid at every day)",
        "no day decided" if decided is None else f"decided on day {decided}",
        f"shoppers {old:,} to {new:,}: " + ("NOT split as planned" if found.ratio.mismatch else "as planned"),
        *(
            f"new - {one.name} ({100 * one.truth:.1f} %): {100 * one.difference:+.2f} points,"
            f" {100 * one.low:+.2f} to {100 * one.high:+.2f} (95 %, by the hidden truth)"
            for one in found.references
        ),
    ]


def _page(found: Comparison, picture: Path) -> str:
    image = base64.b64encode(picture.read_bytes()).decode()

    def line(cells: Any, tag: str = "td") -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    table = "".join([line(COLUMNS, "th"), *(line(row) for row in rows(found))])
    said = "".join(f"<li>{html.escape(text)}</li>" for text in verdict(found))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Old solution against new</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }}
img {{ max-width: 100% }} table {{ border-collapse: collapse }}
td, th {{ padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #ddd }}
</style></head><body><h1>Old solution against new</h1>
<p>Simulated payments, seed {found.seed}, {found.per_hour * 168:,.0f} a week, half of the shoppers each.
Old: rules per issuer from A/B tests on a fifth of the traffic, derived anew each week. New: an oracle trained
weekly on its own decisions, with an overlay in between. Issuers drift in week 6.</p>
<img alt="Conversion per week" src="data:image/png;base64,{image}"><ul>{said}</ul>
<table>{table}</table></body></html>
"""
