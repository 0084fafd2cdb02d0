"""Plots of a run: one of all ratios with their targets, and one for each name that figures give as `plot`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from loadtests.figures import Figure, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours that colour-blind people can tell apart (Okabe and Ito). The first is always ours.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000")
_STYLE: Final[dict[str, Any]] = {
    "figure.dpi": 110,
    "savefig.bbox": "tight",
    "font.size": 9.5,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
}
# Together with the colours of the peers, enough for 21 peers.
_MARKERS: Final = ("o", "s", "D")
# A logarithmic axis whose ends have a larger ratio has labels only at powers of ten.
_FEW_LABELS: Final = 500
# Name of the figures that give the memory of the forest. They are not drawn as a curve; a line marks where
# the forest becomes larger than a cache.
MEMORY: Final = "memory"


@dataclass(frozen=True)
class Curve:
    """How the points of a plot are shown."""

    title: str
    across: str
    logarithmic: tuple[bool, bool] = (True, True)
    # Whether the names are those of servers, each with a colour, and not those of our workloads.
    servers: bool = False
    # Whether a linear scale starts at 0.
    from_zero: bool = True
    # Labels of the positions 1, 2, ... They have no order, so no lines connect them.
    places: tuple[str, ...] = ()
    # Whether each peer has one point and its name is on the axis, because there are more peers than colours.
    named: bool = False
    # Label of the vertical axis; by default the unit.
    quantity: str = ""


_SETS: Final = ("digits", "letter", "satimage", "shuttle", "vehicle", "vowel")

CURVES: Final = {
    "trees": Curve("Cost of one row by number of trees (depth 6, 40 features)", "trees"),
    "rows": Curve("Cost per row by number of rows (500 trees of depth 6)", "rows per call"),
    "actions": Curve("One context, many actions (500 trees of depth 6)", "actions"),
    "goodput": Curve("Goodput under overload", "offered load, multiple of capacity", (False, False)),
    "rate": Curve("p99 by rate, open loop (500 trees of depth 6)", "requests per second", servers=True),
    "exploration-sets": Curve(
        "Regret on six sets, one oracle, tuned peers",
        "",
        (False, False),
        places=_SETS,
        quantity="regret per decision",
    ),
    "exploration-sets-defaults": Curve(
        "Regret on six sets, one oracle, peers' defaults",
        "",
        (False, False),
        places=_SETS,
        quantity="regret per decision",
    ),
    "exploration-payments": Curve(
        "Regret per payment, one oracle", "week", (False, False), quantity="regret per payment"
    ),
    "exploration-payments-rules": Curve(
        "Regret per payment, one oracle", "regret per payment", (False, False), named=True
    ),
    "generations": Curve("Value per generation, by truth", "week", (False, False), from_zero=False),
    "step": Curve("p99 across a step 0.5× → 0 → 5× → 0.5×", "seconds", (False, True)),
}


def draw(run: Run, ratios: list[Figure], folder: Path) -> Iterator[Path]:
    """Draw the ratios and every plot for which the run has points.

    Args:
        run: The lines.
        ratios: The figures of the plot of ratios. Without figures, that plot is not drawn.
        folder: Folder of the PNG files.

    Yields:
        The path of each file.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    with plt.style.context(_STYLE):
        if ratios:
            yield _save(_ratios(ratios), folder / "ratios.png")
        for name in dict.fromkeys(figure.plot for figure in run.figures if figure.plot):
            points = [figure for figure in run.figures if figure.plot == name]
            curve = CURVES.get(name, Curve(points[0].name, name))
            picture = _named(points, curve) if curve.named else _curve(points, curve, run.machine["caches"])
            yield _save(picture, folder / f"{name}.png")


def _save(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt

    figure.savefig(path)
    plt.close(figure)
    return path


def _ratios(figures: list[Figure]) -> Any:
    """Draw a row for each name of a figure, with a marker per peer and a bar at the target."""
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(figure.name for figure in figures))
    peers = list(dict.fromkeys(figure.peer for figure in figures))
    hues = _COLOURS[1:]
    colours = {peer: hues[i % len(hues)] for i, peer in enumerate(peers)}
    markers = {peer: _MARKERS[i // len(hues) % len(_MARKERS)] for i, peer in enumerate(peers)}
    picture, axes = plt.subplots(figsize=(11, 2.4 + 0.27 * len(names)), layout="constrained")
    seen: set[str | None] = set()
    for figure in figures:
        y = names.index(figure.name)
        axes.plot(
            float(figure.ratio or 1),
            y,
            markers[figure.peer],
            markersize=7,
            color=colours[figure.peer],
            markerfacecolor="white" if figure.result != "met" else colours[figure.peer],
            label=None if figure.peer in seen else figure.peer,
            zorder=3,
        )
        seen.add(figure.peer)
        if figure.target:
            axes.plot(figure.target, y, "|", color=colours[figure.peer], markersize=13, markeredgewidth=2)
    axes.axvline(1, color="#666666", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(_plain)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel("times better than the peer, same run (bar: target; filled: target met)")
    axes.set_title("scorer beside its peers")
    picture.legend(loc="outside lower center", ncols=3)
    return picture


def _named(points: list[Figure], curve: Curve) -> Any:
    """Draw a row for each peer in the order of the points, each with our value."""
    import matplotlib.pyplot as plt

    ordered = sorted(points, key=lambda point: point.x or 0)
    places = range(len(ordered))
    picture, axes = plt.subplots(figsize=(7.2, 1.3 + 0.25 * len(ordered)), layout="constrained")
    axes.plot([point.ours for point in ordered], places, "o", color=_COLOURS[0], label="scorer")
    axes.plot([point.theirs or 0.0 for point in ordered], places, "o", color=_COLOURS[1], label="peer")
    axes.set_yticks(places, [point.peer or "" for point in ordered])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(curve.across)
    axes.set_title(curve.title)
    axes.legend(loc="upper right")
    return picture


def _curve(points: list[Figure], curve: Curve, caches: dict[str, int]) -> Any:
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter

    peers = {point.peer for point in points if point.peer}
    picture, axes = plt.subplots(figsize=(7.2, max(4.2, 0.25 * len(peers))), layout="constrained")
    memory = sorted((point.x or 0, point.ours) for point in points if point.name.startswith(MEMORY))
    points = [point for point in points if not point.name.startswith(MEMORY)]
    ours: dict[str, dict[float, float]] = {}
    theirs: dict[str, dict[float, float]] = {}
    for point in points:
        x = point.x or 0
        ours.setdefault(point.name, {})[x] = point.ours
        if point.peer and point.theirs is not None:
            theirs.setdefault(point.peer, {})[x] = point.theirs
    several = len(ours) > 1
    for i, (name, values) in enumerate(ours.items()):
        style = ("-", "--", ":")[i % 3]
        label = f"scorer, {name}" if several else "scorer"
        if curve.servers:
            style, label = "-", name
        style = "" if curve.places else style
        colour = _COLOURS[i % len(_COLOURS)] if curve.servers else _COLOURS[0]
        axes.plot(*zip(*sorted(values.items()), strict=True), f"o{style}", color=colour, label=label)
    for i, (peer, values) in enumerate(theirs.items()):
        colour = _COLOURS[1 + i % (len(_COLOURS) - 1)]
        # If there are more peers than colours, the colours are used again with another marker.
        style = ("_" if i < len(_COLOURS) - 1 else "x") if curve.places else "o-"
        size = {"_": 12, "x": 5}.get(style)
        axes.plot(*zip(*sorted(values.items()), strict=True), style, color=colour, label=peer, ms=size)
    if curve.places:
        axes.set_xticks(range(1, len(curve.places) + 1), curve.places)
    for axis, logarithmic in zip((axes.xaxis, axes.yaxis), curve.logarithmic, strict=True):
        if logarithmic:
            (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
            low, high = axis.get_view_interval()
            # Some plots span less than a decade.
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < _FEW_LABELS else (1,)))
            axis.set_major_formatter(_plain)
            axis.set_minor_formatter(NullFormatter())
    if not curve.logarithmic[1] and curve.from_zero:
        axes.set_ylim(bottom=0)
    _cache_ends(axes, memory, caches)
    axes.set_xlabel(curve.across)
    axes.set_ylabel(curve.quantity or points[0].unit)
    axes.set_title(curve.title)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
    return picture


def _cache_ends(axes: Axes, memory: list[tuple[float, float]], caches: dict[str, int]) -> None:
    """Mark where the forest becomes larger than each cache, interpolated between two points."""
    for (x0, bytes0), (x1, bytes1) in pairwise(memory):
        for name, size in caches.items():
            if bytes0 < size <= bytes1:
                end = x0 + (x1 - x0) * (size - bytes0) / (bytes1 - bytes0)
                axes.axvline(end, color="#AAAAAA", linestyle=(0, (4, 3)), linewidth=1)
                axes.annotate(
                    f"{name} ends",
                    (end, 1),
                    xycoords=("data", "axes fraction"),
                    xytext=(3, -10),
                    textcoords="offset points",
                    fontsize=8,
                    color="#777777",
                )


def _plain(value: float, _position: float) -> str:
    """Format a number as 1, 10 or 1,000, not as a power of ten."""
    return f"{value:,g}"
