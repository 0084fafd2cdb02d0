"""How many of the candidates the gates stop or pass, by the number of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from loadtests.zoo import windows
from loadtests.zoo.candidates import REVIEW, Candidate
from loadtests.zoo.payments import Payments
from scorer.release.model import GateResult, Outcome
from scorer.stats import ranking

SIZES: Final = (1_000, 10_000, 100_000)
WINDOWS: Final = {1_000: 20, 10_000: 10, 100_000: 2}
"""Number of windows for each candidate, by the rows of a window."""
LOST: Final = 0.2
"""A candidate is bad if it loses more than this share of the frauds that the live model finds."""
KEPT: Final = 0.05
"""A candidate is good if it was trained without a fault and loses at most this share. Candidates in
between are shown and not counted, because a fault that does little harm may be stopped or not."""


@dataclass
class Row:
    """The results of one candidate.

    Attributes:
        name: What distinguishes it from the live model.
        lost: Share of the live model's recall that it loses, at the live model's rate over all judged
            payments.
        kind: `bad`, `good` or `between`.
        stopped: Share of the windows in which it was stopped, by judge and rows.
        by: How often each gate stopped it.
    """

    name: str
    lost: float
    kind: str
    stopped: dict[tuple[str, int], float] = field(default_factory=dict)
    by: dict[str, int] = field(default_factory=dict)


def recall(payments: Payments, scores: npt.NDArray[np.float64]) -> float:
    """Return the share of frauds that are found at the live model's rate. Ties are counted fractionally."""
    fraud = payments.fraud[payments.judged]
    weights = ranking.among_highest(ranking.without_gaps(scores), int(REVIEW * len(scores)))
    return float(weights[fraud].mean())


def judge(
    payments: Payments,
    live: Candidate,
    candidate: Candidate,
    *,
    sizes: Sequence[int] = SIZES,
    counts: dict[int, int] | None = None,
) -> Row:
    """Judge a candidate in windows of each size: by the shadow, by the backtest, and by both.

    The backtest uses the earlier half of the judged payments, because outcomes take time, and the shadow the
    later half. A candidate is stopped if a gate that decides does not pass in the shadow, or fails in the
    backtest. With *both*, the shadow has the given number of rows and the backtest the whole earlier half.

    Args:
        payments: All payments.
        live: The live model.
        candidate: The candidate.
        sizes: Rows of the windows.
        counts: Number of windows by rows; None: `WINDOWS`.
    """
    lost = 1 - recall(payments, candidate.scores) / recall(payments, live.scores)
    bad = candidate.is_fault or lost > LOST
    good = candidate.is_sound and lost <= KEPT
    row = Row(candidate.name, lost, "bad" if bad else "good" if good else "between")
    half = len(live.scores) // 2
    random = np.random.default_rng([7, len(candidate.name), round(1e6 * abs(lost))])
    whole = _failed(windows.backtest(payments, live, candidate, np.arange(half)))
    for size in sizes:
        times = (counts or WINDOWS)[size]
        shadow, backtest = [], []
        for _ in range(times):
            places = _some(random, half, len(live.scores), size)
            shadow.append(_blocking(windows.shadow(live, candidate, places, random)))
            if len(backtest) < 2:
                earlier = _some(random, 0, half, size)
                backtest.append(_failed(windows.backtest(payments, live, candidate, earlier)))
        for gate in [*(gate for one in shadow for gate in one), *whole]:
            row.by[gate] = row.by.get(gate, 0) + 1
        row.stopped["shadow", size] = _share(shadow)
        row.stopped["backtest", size] = _share(backtest)
        row.stopped["both", size] = 1.0 if whole else row.stopped["shadow", size]
    return row


def summary(rows: Iterable[Row], judge: str, size: int) -> dict[str, float]:
    """Return the shares of windows in which bad candidates are stopped and good ones pass.

    Args:
        rows: The results of the candidates.
        judge: `shadow`, `backtest` or `both`.
        size: Rows of the windows.
    """
    own = list(rows)
    bad = [row.stopped[judge, size] for row in own if row.kind == "bad"]
    losing = [row.stopped[judge, size] for row in own if row.lost > LOST]
    good = [1 - row.stopped[judge, size] for row in own if row.kind == "good"]
    return {
        "bad stopped": float(np.mean(bad)) if bad else float("nan"),
        "losing stopped": float(np.mean(losing)) if losing else float("nan"),
        "good passed": float(np.mean(good)) if good else float("nan"),
    }


def _some(random: np.random.Generator, first: int, end: int, size: int) -> npt.NDArray[np.intp]:
    return np.sort(first + random.choice(end - first, min(size, end - first), replace=False))


def _blocking(results: Sequence[GateResult]) -> list[str]:
    return [result.metric for result in results if result.outcome is not Outcome.PASS]


def _failed(results: Sequence[GateResult]) -> list[str]:
    return [result.metric for result in results if result.outcome is Outcome.FAIL]


def _share(found: Sequence[Sequence[str]]) -> float:
    return float(np.mean([bool(one) for one in found]))
