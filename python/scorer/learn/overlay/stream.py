"""From a log to an overlay: outcomes in the order in which they may be used, a fit every few minutes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import OverlaySpec
from scorer.learn.experience import Experience, State
from scorer.learn.join.hashing import Hashes, id_hashes
from scorer.learn.oracle import OracleTask
from scorer.learn.overlay.delays import DAY_MS, Delays, measured_at_ms
from scorer.learn.overlay.design import Design, logit
from scorer.learn.overlay.learner import OverlayLearner
from scorer.learn.overlay.posterior import Outcomes
from scorer.learn.overlay.settings import OverlaySettings
from scorer.stats.arrays import Floats, Ints

REPLAY_MS = 6 * 3_600_000
"""A log is replayed in steps of so long: evidence is forgotten over days."""

_OUTCOME = ("segment", "action", "logit", "reward", "weight")
_WAITING = np.dtype(
    [
        ("at", np.int64),
        ("hash", np.uint64),
        ("segment", np.int64),
        ("action", np.int64),
        ("logit", np.float64),
        ("reward", np.float64),
        ("weight", np.float64),
        ("share", np.float64),
    ]
)
"""When an outcome may be used, the hash of the decision's id, and what it says; see `OutcomeStream.add`."""


class OutcomeStream:
    """Decisions whose outcomes have not been used yet.

    Give it every decision once, and ask for what is due as time goes by. In a
    simulation decisions may come with outcomes of the future: none is handed
    out before its moment.
    """

    def __init__(self, design: Design, delays: Delays) -> None:
        self._design, self._delays = design, delays
        self._waiting = np.empty(0, _WAITING)
        self._new: list[npt.NDArray[Any]] = []

    def push(self, experience: Experience, scores: npt.NDArray[Any]) -> None:
        """Adds decisions.

        Args:
            experience: `n` decisions.
            scores: `[n]` P(reward) of what was chosen, by an oracle that did not learn from them; NaN
                leaves a decision out.
        """
        known = np.flatnonzero((experience.state == State.SETTLED) & ~np.isnan(scores))
        self.add(
            id_hashes(experience.decision_id[known]),
            experience.time_ms[known],
            experience.settled_ms[known],
            self._design.codes(experience.context[known]),
            experience.action[known],
            logit(scores[known]),
            experience.reward[known],
        )

    def add(
        self,
        hashes: Hashes,
        time_ms: Ints,
        settled_ms: Ints,
        segment: Ints,
        action: Ints,
        logits: Floats,
        reward: Floats,
    ) -> None:
        """Adds decisions whose outcome is known, `[n]` each. Hashes order those of the same moment.

        Args:
            hashes: of their ids.
            time_ms: when they were made.
            settled_ms: when their outcome became known.
            segment: codes.
            action: positions in the catalogue.
            logits: the oracle's.
            reward: 0 or 1.
        """
        admitted = self._delays.admit(time_ms, settled_ms, action, reward)
        row = admitted.row
        new = np.empty(len(row), _WAITING)
        new["at"], new["hash"] = admitted.at_ms, hashes[row]
        new["segment"], new["action"], new["logit"], new["reward"] = (
            column[row] for column in (segment, action, logits, reward)
        )
        new["weight"], new["share"] = admitted.weight, admitted.share
        self._new.append(new)

    def due(self, now_ms: int) -> tuple[Outcomes, Floats]:
        """What may be used by now and was not handed out yet, and its share for the guard."""
        waiting = self._ordered()
        end = int(np.searchsorted(waiting["at"], now_ms, side="right"))
        first, self._waiting = waiting[:end], waiting[end:]
        columns = (np.ascontiguousarray(first[name]) for name in _OUTCOME)
        return Outcomes(*columns), np.ascontiguousarray(first["share"])

    @property
    def next_ms(self) -> int | None:
        """When the next outcome may be used."""
        waiting = self._ordered()
        return int(waiting["at"][0]) if len(waiting) else None

    def _ordered(self) -> npt.NDArray[Any]:
        """Return what waits, by the moment from which on it may be used, and then by hash."""
        if self._new:
            rows = np.concatenate([self._waiting, *self._new])
            self._waiting, self._new = rows[np.lexsort((rows["hash"], rows["at"]))], []
        return self._waiting


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
    since_ms: int = 0,
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
        since_ms: time from which on `experience` has decisions, if that moves with `now_ms`. Delays are then
            measured from the midnight after it, because between two midnights they must not change.

    Raises:
        DataError: delays cannot be measured, or the segment or family does not exist.
    """
    design = Design(task, plan.segment)
    if delays is None:
        delays = _measured(experience, task, plan, now_ms, since_ms)
    stream, learner = OutcomeStream(design, delays), OverlayLearner(design, plan)
    stream.push(experience, scores)
    catch_up(stream, learner, now_ms)
    return Fitted(learner.spec(), learner, delays)


def _measured(
    experience: Experience, task: OracleTask, plan: OverlaySettings, now_ms: int, since_ms: int
) -> Delays:
    begin = first_measured_ms(since_ms)
    old = experience.take(experience.time_ms >= begin) if begin else experience
    known_ms = old.time_ms[old.state == State.SETTLED]
    return Delays.measured(
        old,
        task,
        measured_at_ms(known_ms, now_ms, plan.window_hours),
        factor=plan.family or None,
        window_hours=plan.window_hours,
        quantile=plan.quantile,
    )


def first_measured_ms(since_ms: int) -> int:
    """Time of the first decisions whose delays are measured: the midnight at or after `since_ms`."""
    return -(-since_ms // DAY_MS) * DAY_MS


def catch_up(stream: OutcomeStream, learner: OverlayLearner, now_ms: int) -> None:
    """Learns what could have been used by now, in steps that are coarser than live fits and much cheaper."""
    while (following := stream.next_ms) is not None and following <= now_ms:
        tick = min(-(-following // REPLAY_MS) * REPLAY_MS, now_ms)
        learner.learn(*stream.due(tick), tick)
