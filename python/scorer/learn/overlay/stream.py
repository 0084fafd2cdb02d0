"""From a log to an overlay: outcomes in the order in which they may be used, a fit every few minutes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import OverlaySpec
from scorer.learn.experience import Experience
from scorer.learn.oracle import OracleTask
from scorer.learn.overlay.delays import Delays
from scorer.learn.overlay.design import Design, logit
from scorer.learn.overlay.learner import OverlayLearner
from scorer.learn.overlay.posterior import Outcomes
from scorer.learn.overlay.settings import OverlaySettings
from scorer.stats.arrays import Floats

# A log is replayed in steps of so long: evidence is forgotten over days.
_REPLAY_MS = 6 * 3_600_000


class OutcomeStream:
    """Decisions whose outcomes have not been used yet.

    Give it every decision once, and ask for what is due as time goes by. In a
    simulation decisions may come with outcomes of the future: none is handed
    out before its moment.
    """

    def __init__(self, design: Design, delays: Delays) -> None:
        self._design, self._delays = design, delays
        self._at = np.empty(0, dtype=np.int64)
        self._columns: tuple[npt.NDArray[Any], ...] = tuple(
            np.empty(0, dtype=kind) for kind in (np.int64, np.int64, float, float, float, float)
        )

    def push(self, experience: Experience, scores: npt.NDArray[Any]) -> None:
        """Adds decisions.

        Args:
            experience: `n` decisions.
            scores: `[n]` P(reward) of what was chosen, by an oracle that did not learn from them; NaN
                leaves a decision out.
        """
        admitted = self._delays.admitted(experience)
        row = admitted.row
        usable = ~np.isnan(scores[row])
        row = row[usable]
        new = (
            self._design.codes(experience.context[row]),
            experience.action[row],
            logit(scores[row]),
            experience.reward[row],
            admitted.weight[usable],
            admitted.share[usable],
        )
        at = np.concatenate([self._at, admitted.at_ms[usable]])
        order = np.argsort(at, kind="stable")
        self._at = at[order]
        self._columns = tuple(np.concatenate(pair)[order] for pair in zip(self._columns, new, strict=True))

    def due(self, now_ms: int) -> tuple[Outcomes, Floats]:
        """What may be used by now and was not handed out yet, and its share for the guard."""
        end = int(np.searchsorted(self._at, now_ms, side="right"))
        first = [column[:end] for column in self._columns]
        self._at, self._columns = self._at[end:], tuple(column[end:] for column in self._columns)
        return Outcomes(*first[:5]), first[5]

    @property
    def next_ms(self) -> int | None:
        """When the next outcome may be used."""
        return int(self._at[0]) if len(self._at) else None


@dataclass(frozen=True)
class Fitted:
    """An overlay and how it came about.

    Attributes:
        spec: what to serve; None where the guard has it switched off, or nothing was learned.
        learner: what is believed, and the guards.
        delays: when outcomes count.
    """

    spec: OverlaySpec | None
    learner: OverlayLearner
    delays: Delays


def fit(
    experience: Experience,
    scores: npt.NDArray[Any],
    task: OracleTask,
    plan: OverlaySettings,
    now_ms: int,
    *,
    delays: Delays | None = None,
) -> Fitted:
    """Fits on a log, going through it in order of time; nothing is kept between two calls.

    Args:
        experience: as of `now_ms`, with decisions of at least `plan.window_hours` ago, which teach delays.
        scores: `[n]` P(reward) of what was chosen by the oracle that the overlay is for; NaN for decisions
            that taught that oracle: what it has learned already must not count twice.
        task: the catalogue.
        plan: how.
        now_ms: Unix time.
        delays: where they are known already.

    Raises:
        DataError: delays cannot be measured, or the segment or family does not exist.
    """
    design = Design(task, plan.segment)
    delays = delays or Delays.measured(
        experience,
        task,
        now_ms,
        factor=plan.family or None,
        window_hours=plan.window_hours,
        quantile=plan.quantile,
    )
    stream, learner = OutcomeStream(design, delays), OverlayLearner(design, plan)
    stream.push(experience, scores)
    catch_up(stream, learner, now_ms)
    return Fitted(learner.spec(), learner, delays)


def catch_up(stream: OutcomeStream, learner: OverlayLearner, now_ms: int) -> None:
    """Learns what could have been used by now, in steps that are coarser than live fits and much cheaper."""
    while (following := stream.next_ms) is not None and following <= now_ms:
        tick = min(-(-following // _REPLAY_MS) * _REPLAY_MS, now_ms)
        learner.learn(*stream.due(tick), tick)
