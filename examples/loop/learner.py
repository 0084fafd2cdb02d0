"""A solution that learns: one generation per week, and an overlay that is fitted more often in between.

It has the data of a deployed system only: its own decisions, and their outcomes once they are reported. The
market simulates the outcomes and evaluates the policy.
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
from scorer.learn.overlay.delays import Delays
from scorer.learn.overlay.design import Design, adjusted
from scorer.learn.overlay.learner import OverlayLearner
from scorer.learn.overlay.settings import OverlaySettings
from scorer.learn.overlay.stream import OutcomeStream, catch_up
from scorer.learn.training.fitting import fit
from scorer.learn.training.settings import PolicySettings, TrainSettings
from scorer.learn.training.trained import Trained

Floats = npt.NDArray[np.float64]

# Small forests and two folds, so that a year of weeks takes minutes on one core.
QUICK = TrainSettings(
    trees=120,
    depth=5,
    learning_rate=0.1,
    tau=(0.0,),
    folds=2,
    compare=False,
    policy=PolicySettings(rule="epsilon_greedy", epsilon=0.02, floor=0.0),
)

# At ten thousand payments a week, an hour has few outcomes.
SELDOM = OverlaySettings(every_minutes=120)


@dataclass(frozen=True)
class LoopPlan:
    """Settings of a solution that learns.

    Attributes:
        train: Settings of the training of a generation.
        overlay: Settings of the overlay between generations; None: there is no overlay.
        window_weeks: Weeks of decisions that a generation is trained on.
        carries: Whether the overlay of a new generation starts from the training decisions of that
            generation, with out-of-fold predictions; otherwise it starts from zero.
    """

    train: TrainSettings = QUICK
    overlay: OverlaySettings | None = SELDOM
    window_weeks: int = 8
    carries: bool = True


@dataclass(frozen=True)
class Served:
    """Payments that were decided.

    Attributes:
        experience: The decisions, with outcomes that may lie in the future.
        value: `[n]` true P(authorised) under the served policy.
    """

    experience: Experience
    value: Floats


class Learner:
    """A solution that learns from its own payments only.

    Args:
        market: Simulates the outcomes of decisions; its true probabilities are used for evaluation only.
        task: The actions and the context of the choice.
        plan: Settings.
        log: Decisions from before the start, such as a week of the baseline.
        lane: Name of the lane in the log.
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
        """The serving generation."""
        if self._trained is None:
            raise RuntimeError("retrain first")
        return self._trained

    def retrain(self, now_ms: int) -> None:
        """Train a new generation on the outcomes known at `now_ms`, and start its overlay."""
        since = now_ms - self.plan.window_weeks * WEEK_MS
        # Weeks that no later generation will read are dropped.
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
        """Decide payments in order of time and fit the overlay in between.

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
        """Return the `[n, K]` current probabilities, overlay included, without a decision."""
        return self.snapshot()(arrivals)

    def snapshot(self) -> Callable[[Arrivals], Floats]:
        """Return the current policy as a function, unaffected by later learning."""
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
        """Return `[n]` P(reward) of the chosen actions, by trees that were not trained on that decision.

        Settled decisions have the out-of-fold predictions of the generation, those in flight its
        predictions. The new overlay therefore keeps what the new trees have not learned, and no outcome
        counts twice.
        """
        scores = np.empty(len(known))
        settled = known.state == State.SETTLED
        scores[settled] = self.trained.out_of_fold.probability()
        waiting = np.flatnonzero(~settled)
        predicted = self.trained.evaluate(known.context[waiting])[1]
        scores[waiting] = predicted[np.arange(len(waiting)), known.action[waiting]]
        return scores

    def _pieces(self, arrivals: Arrivals) -> Iterator[slice]:
        """Yield the payments between two fits; the overlay is fitted before each piece."""
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
