"""Plots for the report, as SVG text. Matplotlib without a display."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt

mpl.use("Agg")
from matplotlib import pyplot as plt
from sklearn.metrics import precision_recall_curve, roc_curve

Array = npt.NDArray[Any]
BLUE, ORANGE, GREY = "#2563eb", "#ea580c", "#9ca3af"


def svg(figure: Any) -> str:
    """A figure as SVG that stands inside a page."""
    buffer = io.StringIO()
    # No date and no random ids: the same figures give the same page.
    with mpl.rc_context({"svg.hashsalt": "scorer", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    text = buffer.getvalue()
    return re.sub(r"^.*?(?=<svg)", "", text, flags=re.DOTALL)


def _axes(width: float = 5.2, height: float = 3.2) -> tuple[Any, Any]:
    figure, axes = plt.subplots(figsize=(width, height))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, alpha=0.25)
    return figure, axes


def score_histogram(scores: Array, fraud: Array, bands: Sequence[tuple[float, str]]) -> str:
    """Served scores of genuine and fraudulent transactions, with the thresholds."""
    figure, axes = _axes()
    edges = np.linspace(0, 1, 41)
    axes.hist(scores[fraud == 0], edges, color=BLUE, alpha=0.7, label="genuine", log=True)
    axes.hist(scores[fraud == 1], edges, color=ORANGE, alpha=0.7, label="fraud", log=True)
    for start, label in bands[1:]:
        axes.axvline(start, color="black", linewidth=0.8, linestyle="--")
        axes.text(start, axes.get_ylim()[1], f" {label}", va="top", fontsize=8)
    axes.set_xlabel("fraud probability, as served")
    axes.set_ylabel("transactions (log)")
    axes.legend(frameon=False)
    return svg(figure)


def roc_and_precision(curves: Mapping[str, tuple[Array, Array]]) -> str:
    """ROC and precision-recall curves of several versions: name to (scores, labels)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.4))
    for (name, (scores, fraud)), colour in zip(curves.items(), (GREY, BLUE, ORANGE), strict=False):
        rates = roc_curve(fraud, scores)
        precision, recall, _ = precision_recall_curve(fraud, scores)
        left.plot(rates[0], rates[1], color=colour, label=name)
        right.plot(recall, precision, color=colour, label=name)
    left.plot([0, 1], [0, 1], color="black", linewidth=0.6, linestyle=":")
    left.set(xlabel="false positive rate", ylabel="true positive rate", title="ROC")
    right.set(xlabel="recall", ylabel="precision", title="precision and recall")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, alpha=0.25)
        axes.legend(frameon=False)
    return svg(figure)


def latencies(by_method: Mapping[str, Sequence[float]]) -> str:
    """Client-side latency, as the share of calls that took longer."""
    figure, axes = _axes()
    for (method, values), colour in zip(by_method.items(), (BLUE, ORANGE, GREY), strict=False):
        ordered = np.sort(np.asarray(values))
        longer = 1 - np.arange(len(ordered)) / len(ordered)
        axes.plot(ordered, longer, color=colour, label=method)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for share in (0.5, 0.01, 0.001):
        axes.axhline(share, color="black", linewidth=0.5, linestyle=":")
    axes.set(xlabel="milliseconds, seen by the client", ylabel="share of calls that took longer")
    axes.legend(frameon=False)
    return svg(figure)


def action_shares(served: Mapping[str, float], logged: Mapping[str, float]) -> str:
    """The actions chosen most, beside how often the baseline chose them."""
    names = list(served)[::-1]
    figure, axes = _axes(8.6, 0.34 * len(names) + 1)
    at = np.arange(len(names))
    axes.barh(at + 0.2, [served[name] for name in names], 0.4, color=BLUE, label="served")
    axes.barh(at - 0.2, [logged.get(name, 0.0) for name in names], 0.4, color=GREY, label="baseline")
    axes.set_yticks(at, [short_action(name) for name in names], fontsize=7)
    axes.set_xlabel("share of payments")
    axes.legend(frameon=False)
    return svg(figure)


def rates(entries: Sequence[tuple[str, float, float, float]]) -> str:
    """Rates with intervals: (name, value, low, high)."""
    figure, axes = _axes(6.4, 0.45 * len(entries) + 0.9)
    for at, (_, value, low, high) in enumerate(reversed(entries)):
        colour = ORANGE if at == 0 else BLUE
        axes.errorbar(
            value, at, xerr=[[max(0.0, value - low)], [max(0.0, high - value)]], fmt="o", color=colour
        )
        axes.text(value, at + 0.15, f"{value:.1%}", ha="center", fontsize=8)
    axes.set_yticks(range(len(entries)), [name for name, *_ in reversed(entries)])
    axes.set_ylim(-0.5, len(entries) - 0.3)
    axes.xaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0))
    return svg(figure)


def swap_timeline(
    timeline: Sequence[tuple[float, str, str]], names: Mapping[str, str], ordered_at: float
) -> str:
    """Answers per bundle in short intervals, a panel per checkpoint, with the moment the aliases moved."""
    checkpoints = sorted({checkpoint for _, checkpoint, _ in timeline})
    edges = np.linspace(0, max(at for at, _, _ in timeline), 81)
    figure, panels = plt.subplots(
        len(checkpoints), 1, figsize=(9.4, 1.9 * len(checkpoints) + 0.4), sharex=True, squeeze=False
    )
    for axes, checkpoint in zip(panels[:, 0], checkpoints, strict=True):
        digests = dict.fromkeys(d for _, where, d in timeline if where == checkpoint)
        for digest, colour in zip(digests, (GREY, BLUE, ORANGE), strict=False):
            counts, _ = np.histogram(
                [at for at, where, d in timeline if (where, d) == (checkpoint, digest)], edges
            )
            axes.step(
                edges[:-1],
                counts / (edges[1] - edges[0]),
                where="post",
                color=colour,
                label=names.get(digest, "?"),
            )
        axes.axvline(ordered_at, color="black", linewidth=0.8, linestyle="--")
        axes.set_title(checkpoint, fontsize=9, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
        axes.set_ylabel("answers / s")
    panels[-1, 0].set_xlabel("seconds of traffic; dashed: the aliases move")
    figure.tight_layout()
    return svg(figure)


def short_action(name: str) -> str:
    """An action's id without the factors' names."""
    return " · ".join(part.partition("=")[2] for part in name.split("|"))
