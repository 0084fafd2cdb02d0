"""One solution that learns: a generation a week, an overlay every few minutes in between.

It sees what a real one sees: its own decisions, and outcomes once they are
there. The market decides what becomes of a decision, and judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from examples.simulators.outcomes import as_of, decide
from examples.simulators.weeks import WEEK_MS, Arrivals, Market
from scorer.bundle import Policy
from scorer.learn.experience import Experience, State, concatenate
from scorer.learn.oracle import OracleTask
from scorer.learn.overlay import (
    Delays,
    Design,
    OutcomeStream,
    OverlayLearner,
    OverlaySettings,
    adjusted,
    catch_up,
)
from scorer.learn.training import Trained, fit
from scorer.learn.training.settings import PolicySettings, TrainSettings

Floats = npt.NDArray[np.float64]

# Small forests and two folds: a year of weeks in minutes on one core.
QUICK = TrainSettings(
    trees=120,
    depth=5,
    learning_rate=0.1,
    tau=(0.0,),
    folds=2,
    compare=False,
    policy=PolicySettings(rule="epsilon_greedy", epsilon=0.02, floor=0.0),
)

# Ten thousand payments a week bring little news in an hour.
SELDOM = OverlaySettings(every_minutes=120)


@dataclass(frozen=True)
class LoopPlan:
    """How a solution learns.

    Attributes:
        train: a generation.
        overlay: between generations; None for nothing.
        window_weeks: how many weeks a generation learns from.
        carries: a new generation's overlay starts from all that generation was taught by, on
            out-of-fold predictions; otherwise it starts with nothing.
    """

    train: TrainSettings = QUICK
    overlay: OverlaySettings | None = SELDOM
    window_weeks: int = 8
    carries: bool = True


@dataclass(frozen=True)
class Served:
    """Payments that were decided.

    Attributes:
        experience: the decisions, with outcomes that may lie in the future.
        value: `[n]` P(authorised) under what was served, by truth.
    """

    experience: Experience
    value: Floats


class Learner:
    """Learns from its own payments alone.

    Args:
        market: says what becomes of decisions; never asked for the truth but to judge.
        task: what is chosen, given what.
        plan: how.
        log: what there is before it begins, such as a week of the baseline.
        lane: what it is called in its log.
    """

    def __init__(
        self, market: Market, task: OracleTask, plan: LoopPlan, log: Experience, lane: str = "new"
    ) -> None:
        self.lane = lane
        self.market, self.task, self.plan = market, task, plan
        self._log = [log]
        self._catalogue = task.actions
        self._trained: Trained | None = None
        self._policy: Policy | None = None
        self._stream: OutcomeStream | None = None
        self.overlay: OverlayLearner | None = None

    @property
    def trained(self) -> Trained:
        """The generation that serves."""
        if self._trained is None:
            raise RuntimeError("retrain first")
        return self._trained

    def retrain(self, now_ms: int) -> None:
        """A new generation from what is known, and a new overlay for it."""
        since = now_ms - self.plan.window_weeks * WEEK_MS
        # Weeks that no generation will look at again are let go.
        self._log = [part for part in self._log if len(part) and part.time_ms[-1] >= since - WEEK_MS]
        whole = concatenate(self._log)
        whole = whole.take(whole.time_ms >= since)
        known = as_of(whole, now_ms)
        self._trained = fit(
            self.task, known, self.plan.train, self._trained, data_digest=f"sha256:{now_ms:064x}"
        )
        self._policy = Policy(self._trained.policy, self._catalogue)
        if self.plan.overlay is not None:
            self._renew_overlay(self.plan.overlay, whole, known, now_ms)

    def serve(self, arrivals: Arrivals, truth: Floats) -> Served:
        """Decides payments in the order of time, fitting the overlay as it goes.

        Args:
            arrivals: `n` payments.
            truth: `[n, K]` `market.truth(arrivals)`.
        """
        rewards = self._rewards(arrivals)
        pmf, parts, eligible = np.empty_like(truth), [], arrivals.eligible
        for part in self._pieces(arrivals):
            some = arrivals.take(part)
            pmf[part] = self._pmf(some, rewards[part], eligible[part])
            name = f"generation-{self.trained.generation}"
            made = decide(self.market, some, pmf[part], name, self.lane, truth[part])
            parts.append(made)
            if self._stream is not None:
                self._stream.push(made, rewards[part][np.arange(len(made)), made.action])
        experience = concatenate(parts)
        self._log.append(experience)
        return Served(experience, (pmf * truth).sum(axis=1))

    def pmf(self, arrivals: Arrivals) -> Floats:
        """`[n, K]` what is served at this moment, overlay included; nothing is decided."""
        return self.snapshot()(arrivals)

    def snapshot(self) -> Callable[[Arrivals], Floats]:
        """What is served at this moment, to be asked later when this has learned more."""
        trained, policy = self.trained, Policy(self.trained.policy, self._catalogue)
        offsets = None if self.overlay is None else (self.overlay.design, self.overlay.table)

        def pmf(arrivals: Arrivals) -> Floats:
            rewards = trained.evaluate(arrivals.rows)[1]
            if offsets is not None:
                rewards = adjusted(rewards, offsets[1][offsets[0].codes(arrivals.rows)])
            return policy.pmf(rewards, arrivals.eligible)

        return pmf

    def _renew_overlay(
        self, plan: OverlaySettings, whole: Experience, known: Experience, now_ms: int
    ) -> None:
        design = Design(self.task, plan.segment)
        delays = Delays.measured(
            known,
            self.task,
            now_ms,
            factor=plan.family or None,
            window_hours=plan.window_hours,
            quantile=plan.quantile,
        )
        self._stream, self.overlay = OutcomeStream(design, delays), OverlayLearner(design, plan)
        if self.plan.carries:
            self._stream.push(whole, self._unlearned(known))
            catch_up(self._stream, self.overlay, now_ms)

    def _unlearned(self, known: Experience) -> Floats:
        """`[n]` P(reward) of what was chosen, by trees that did not learn from that decision.

        Of what taught the generation, its out-of-fold predictions; of what was in flight, its own. So
        what the last overlay knew carries over as far as the new trees have not taken it in, and no
        outcome counts twice.
        """
        scores = np.empty(len(known))
        settled = known.state == State.SETTLED
        scores[settled] = self.trained.out_of_fold.probability()
        waiting = np.flatnonzero(~settled)
        said = self.trained.evaluate(known.context[waiting])[1]
        scores[waiting] = said[np.arange(len(waiting)), known.action[waiting]]
        return scores

    def _pieces(self, arrivals: Arrivals) -> Iterator[slice]:
        """The payments between two fits; the overlay has been fitted before a piece is handed out."""
        if self.overlay is None or self._stream is None:
            yield slice(0, len(arrivals))
            return
        every = self.overlay.plan.every_ms
        start = int(arrivals.time_ms[0]) // every * every
        for now in range(start, int(arrivals.time_ms[-1]) + 1, every):
            self.overlay.learn(*self._stream.due(now), now)
            first, end = np.searchsorted(arrivals.time_ms, [now, now + every])
            if end > first:
                yield slice(int(first), int(end))

    def _rewards(self, arrivals: Arrivals) -> Floats:
        return self.trained.evaluate(arrivals.rows)[1]

    def _pmf(self, arrivals: Arrivals, rewards: Floats, eligible: npt.NDArray[np.bool_]) -> Floats:
        if self._policy is None:
            raise RuntimeError("retrain first")
        if self.overlay is not None:
            table = self.overlay.table
            if table.any():
                rewards = adjusted(rewards, table[self.overlay.design.codes(arrivals.rows)])
        return self._policy.pmf(rewards, eligible)
