"""The page of a selection of features: what each set costs, and what it gains."""

from __future__ import annotations

from scorer.learn.fraud.selection import FeatureSelection
from scorer.learn.report.plots import BLUE, GREY, ORANGE, new_axes, svg
from scorer.report import GOOD, PART, Mark, ReportPage


def selection_page(selection: FeatureSelection, *, data: str) -> str:
    """Return one self-contained HTML page about a finished selection.

    Args:
        selection: The result.
        data: Name of the data.
    """
    best, whole, unit = selection.best, selection.whole, selection.cost_unit
    kept = selection.features(best.groups)
    count = sum(len(one) for one in selection.groups.values())
    page = ReportPage(
        "Selection of features",
        f"{len(selection.steps)} sets of {data}, {selection.direction}; the average precision is the mean "
        f"over {len(best.folds)} validation windows before the test window.",
    )
    found = selection.difference
    reasons = [
        f"The average precision is {best.average_precision:.4f}, with all features "
        f"{whole.average_precision:.4f}.",
        f"The cost is {best.cost:g} {unit} per decision, of all features {whole.cost:g} {unit}.",
    ]
    if found is not None and found.low is not None and found.high is not None:
        reasons.append(
            f"The difference is {found.value:+.4f} [{found.low:+.4f}, {found.high:+.4f}], paired by day. The "
            "same windows have chosen the set, so this interval is optimistic; `scorer learn fraud compare` "
            "judges a bundle on later payments."
        )
    page.verdict(f"{len(kept)} of {count} features are worth their cost.", reasons, GOOD)
    page.tiles(
        [
            (f"{best.average_precision:.4f}", "average precision of the chosen set"),
            (f"{best.cost:g} {unit}", "cost of the chosen set per decision"),
            (f"{selection.price:g}", f"average precision that one {unit} must be worth"),
        ]
    )
    page.section("Gain and cost", "Each point is a set. The dashed line has the worth of the best set.")
    page.plots([(_curve(selection), "Average precision of each set by its cost; the chosen one is orange.")])
    page.section("Features", "The loss is that of the step in which the group was removed or added.")
    page.table(
        ("group", "features", "", f"cost in {unit}", "loss without it"),
        [
            (
                name,
                ", ".join(names),
                Mark("used", GOOD) if name in best.groups else Mark("left out", PART),
                f"{selection.costs[name]:g}",
                _loss(selection, name),
            )
            for name, names in selection.groups.items()
        ],
        texts=(0, 1, 2),
    )
    page.section("Steps")
    verb = "removed" if selection.direction == "backward" else "added"
    page.table(
        ("step", verb, "features", f"cost in {unit}", "average precision", "worth", ""),
        [
            (
                str(at),
                one.changed or "-",
                str(len(selection.features(one.groups))),
                f"{one.cost:g}",
                f"{one.average_precision:.4f}",
                f"{one.worth:.4f}",
                Mark("chosen", GOOD) if at == selection.chosen else "",
            )
            for at, one in enumerate(selection.steps)
        ],
        texts=(1, 6),
    )
    return page.text()


def _loss(selection: FeatureSelection, group: str) -> str:
    for before, after in zip(selection.steps, selection.steps[1:], strict=False):
        if after.changed == group:
            change = after.average_precision - before.average_precision
            return f"{-change if selection.direction == 'backward' else change:+.4f}"
    return "-"


def _curve(selection: FeatureSelection) -> str:
    """Draw the sets by cost, or by their number of features if no group has a cost."""
    figure, axes = new_axes(3.4)
    has_cost = any(selection.costs.values())
    steps = [one for one in selection.steps if one.groups]
    at = [one.cost if has_cost else len(selection.features(one.groups)) for one in steps]
    values = [one.average_precision for one in steps]
    axes.plot(at, values, color=GREY, linewidth=1, zorder=1)
    axes.scatter(at, values, color=BLUE, s=18, zorder=2)
    best = selection.best
    x = best.cost if has_cost else len(selection.features(best.groups))
    axes.scatter([x], [best.average_precision], color=ORANGE, s=60, zorder=3, label="chosen")
    if has_cost and selection.price:
        worth = max(one.worth for one in selection.steps)
        ends = [min(at), max(at)]
        axes.plot(
            ends,
            [worth + selection.price * end for end in ends],
            color=ORANGE,
            linestyle="--",
            linewidth=1,
            label="equal worth",
        )
    # Sets of hardly any feature must not hide the differences of the others.
    top, middle = max(values), sorted(values)[len(values) // 4]
    room = max(top - middle, 0.01)
    axes.set_ylim(max(min(values), middle - 2 * room) - 0.1 * room, top + 0.4 * room)
    axes.set_xlabel(f"cost in {selection.cost_unit} per decision" if has_cost else "features")
    axes.set_ylabel("average precision")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return svg(figure)
