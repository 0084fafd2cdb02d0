"""The real Vowpal Wabbit, learning online: each outcome is learned when it becomes known."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from examples.loop.learner import Served
from examples.simulators.actions import FACTORS, catalogue
from examples.simulators.outcomes import decide
from examples.simulators.payments import Floats
from examples.simulators.weeks import Arrivals, Market
from scorer.learn.experience import Experience, State, concatenate

# The best of the settings that were tried on a world that is in no average (docs/simulators.md, "Worlds").
ARGUMENTS = "--cb_explore_adf --regcb --mellowness 0.0001 -l 2 -q ia -q sa --quiet"
# The payments of this many milliseconds are decided with the same state of the model.
PIECE_MS = 600_000


def is_installed() -> bool:
    """Return whether the package `vowpalwabbit` can be imported."""
    return importlib.util.find_spec("vowpalwabbit") is not None


class VowpalWabbit:
    """Regression-based exploration with a linear model on issuer x action and scheme x action.

    Args:
        market: Simulates the outcomes.
        log: Decisions before the first week, with their propensities.
        arguments: Arguments of the `vw` command line.
    """

    def __init__(self, market: Market, log: Experience, arguments: str = ARGUMENTS) -> None:
        import vowpalwabbit

        self._market = market
        self._workspace: Any = vowpalwabbit.Workspace(arguments)
        self._waiting: list[tuple[int, list[str]]] = []
        self._actions = [_action_line(action.factors) for action in catalogue()]
        self._remember(log)

    def retrain(self, now_ms: int) -> None:
        """Learn every outcome that is known at `now_ms`, Unix time in milliseconds."""
        due = [entry for entry in self._waiting if entry[0] <= now_ms]
        self._waiting = [entry for entry in self._waiting if entry[0] > now_ms]
        for _, lines in sorted(due, key=lambda entry: entry[0]):
            self._workspace.learn(lines)

    def serve(self, arrivals: Arrivals, truth: Floats) -> Served:
        """Decide `n` payments in order of time; `truth` is `[n, K]`."""
        pmf = np.zeros_like(truth)
        parts = []
        piece = arrivals.time_ms // PIECE_MS
        starts = np.flatnonzero(np.diff(piece, prepend=piece[0] - 1))
        for first, end in zip(starts, [*starts[1:], len(arrivals)], strict=True):
            part = slice(int(first), int(end))
            self.retrain(int(arrivals.time_ms[part][0]))
            some = arrivals.take(part)
            for row in range(len(some)):
                eligible = np.flatnonzero(some.eligible[row])
                lines = self._lines(some.rows[row], eligible)
                said = np.asarray(self._workspace.predict(lines), dtype=np.float64)
                pmf[part][row, eligible] = said / said.sum()
            decided = decide(self._market, some, pmf[part], "vw", "vw", truth[part])
            self._remember(decided)
            parts.append(decided)
        return Served(concatenate(parts), (pmf * truth).sum(axis=1))

    def _remember(self, decided: Experience) -> None:
        for row in np.flatnonzero(decided.state == State.SETTLED):
            eligible = np.flatnonzero(decided.eligible[row])
            lines = self._lines(decided.context[row], eligible)
            at = int(np.searchsorted(eligible, decided.action[row]))
            cost, propensity = 1 - decided.reward[row], decided.propensity[row]
            lines[at + 1] = f"0:{cost:g}:{propensity:.6g} {lines[at + 1]}"
            self._waiting.append((int(decided.settled_ms[row]), lines))

    def _lines(
        self, row: Sequence[float] | np.ndarray[Any, Any], eligible: np.ndarray[Any, Any]
    ) -> list[str]:
        amount, hour, issuer, country, scheme, device, decline, _, attempts, token, low_value, risk = row
        shared = (
            f"shared |c amount:{np.log1p(amount / 100):.4g} b{np.searchsorted((20, 50, 100), amount)}"
            f" h{int(hour) // 6} country{country:g} d{device:g} l{decline:g} attempts:{attempts:g}"
            f" token:{token:g} low:{low_value / 4:g} risk:{risk:.4g}"
            f" r{np.searchsorted((0.02, 0.1, 0.4), risk)}"
            f" |i i{issuer:g} |s s{scheme:g}"
        )
        return [shared, *(self._actions[action] for action in eligible)]


def _action_line(factors: Any) -> str:
    return "|a " + " ".join(f"{name}={factors[name]}" for name in FACTORS)
