"""LinUCB, learning online: each outcome is learned when it becomes known.

The rule is that of Li, Chu, Langford and Schapire (WWW 2010): a ridge regression of the reward on features of
context and action, and the eligible action with the highest upper confidence bound.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from examples.loop.baselines import CONTEXT_EFFECTS, ISSUER, LEVELS, action_effects, context_effects, greedy
from examples.loop.learner import Served
from examples.simulators.actions import codes
from examples.simulators.outcomes import decide
from examples.simulators.payments import ISSUER_NAMES, Floats
from examples.simulators.weeks import HOUR_MS, Arrivals, Market
from scorer.learn.experience import Experience, State, concatenate

# The best value of those that were tried on a world that is in no average (docs/simulators.md, "Worlds").
ALPHA: Final = 0.25
# The payments of this many milliseconds are decided with the same state of the model.
PIECE_MS: Final = HOUR_MS


class LinUcb:
    """Ridge regression on the context, factor levels and issuer x factor level, with an optimism bonus.

    Args:
        market: Simulates the outcomes.
        log: Decisions before the first week.
        alpha: Weight of the bonus, in standard errors of the prediction.
        ridge: Value that is added to the diagonal of the features' Gram matrix.
    """

    def __init__(self, market: Market, log: Experience, alpha: float = ALPHA, ridge: float = 1.0) -> None:
        self._market, self._alpha = market, alpha
        size = CONTEXT_EFFECTS + LEVELS * (1 + len(ISSUER_NAMES))
        self._gram, self._target = ridge * np.eye(size), np.zeros(size)
        self._waiting: list[Experience] = []
        issuers = np.repeat(np.arange(len(ISSUER_NAMES)), len(codes()))
        rows = np.zeros((len(issuers), 12))
        rows[:, ISSUER] = issuers
        effects = action_effects(rows, np.tile(np.arange(len(codes())), len(ISSUER_NAMES)))
        # `[issuers, K, f]`: the columns that are 1 for an action, counted after those of the context.
        self._columns = effects.indices.reshape(len(ISSUER_NAMES), len(codes()), -1)
        self._remember(log)

    def retrain(self, now_ms: int) -> None:
        """Learn every outcome that is known at `now_ms`, Unix time in milliseconds."""
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            due = entry.settled_ms <= now_ms
            if due.any():
                known = entry.take(due)
                x = np.hstack(
                    [context_effects(known.context), action_effects(known.context, known.action).toarray()]
                )
                self._gram += x.T @ x
                self._target += x.T @ known.reward
            if not due.all():
                self._waiting.append(entry.take(~due))

    def serve(self, arrivals: Arrivals, truth: Floats) -> Served:
        """Decide `n` payments in order of time; `truth` is `[n, K]`."""
        pmf = np.zeros_like(truth)
        parts = []
        piece = arrivals.time_ms // PIECE_MS
        starts = np.flatnonzero(np.diff(piece, prepend=piece[0] - 1))
        for first, end in zip(starts, [*starts[1:], len(arrivals)], strict=True):
            part = slice(int(first), int(end))
            some = arrivals.take(part)
            self.retrain(int(some.time_ms[0]))
            pmf[part] = greedy(self.upper_bounds(some.rows), some.eligible)
            decided = decide(self._market, some, pmf[part], "linucb", "linucb", truth[part])
            self._remember(decided)
            parts.append(decided)
        return Served(concatenate(parts), (pmf * truth).sum(axis=1))

    def upper_bounds(self, rows: npt.NDArray[np.floating[Any]]) -> Floats:
        """Return the upper confidence bound of each action.

        Args:
            rows: `[n, 12]` contexts in the order of `examples.simulators.task.CONTEXT`.

        Returns:
            `[n, K]`, eligible or not.
        """
        inverse = np.linalg.inv(self._gram)
        weights = inverse @ self._target
        context = context_effects(rows)
        bounds = np.empty((len(rows), len(codes())))
        for issuer in np.unique(rows[:, ISSUER].astype(np.int64)):
            own = rows[:, ISSUER] == issuer
            c, columns, split = context[own], self._columns[issuer], CONTEXT_EFFECTS
            mean = (c @ weights[:split])[:, None] + weights[split:][columns].sum(axis=1)
            # x' A⁻¹ x of x = (context, action), by blocks of the inverse.
            block = inverse[split:, split:][columns[:, :, None], columns[:, None, :]]
            variance = (
                np.einsum("ni,ij,nj->n", c, inverse[:split, :split], c, optimize=True)[:, None]
                + 2 * (c @ inverse[:split, split:])[:, columns].sum(axis=2)
                + block.sum(axis=(1, 2))
            )
            bounds[own] = mean + self._alpha * np.sqrt(np.maximum(variance, 0.0))
        return bounds

    def _remember(self, decided: Experience) -> None:
        settled = decided.state == State.SETTLED
        if settled.any():
            self._waiting.append(decided.take(settled))
