"""Learning an overlay as outcomes come in, every few minutes, between two generations of the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import OverlaySpec
from scorer.learn.logistic import sigmoid
from scorer.learn.overlay.delays import HOUR_MS
from scorer.learn.overlay.design import Design
from scorer.learn.overlay.guard import Guard, cusum
from scorer.learn.overlay.posterior import Outcomes, Posterior
from scorer.learn.overlay.settings import OverlaySettings
from scorer.stats.arrays import Floats


@dataclass
class OverlayLearner:
    """Learns one overlay; a new generation of the oracle begins a new one.

    Attributes:
        design: where coefficients lie.
        plan: how to fit.
        outcomes: how many it has learned from.
        changes: how often a segment was found to have changed.
        gain: by how many nats it said them better than nothing would have, before it knew them.
    """

    design: Design
    plan: OverlaySettings
    outcomes: int = 0
    gain: float = 0.0
    changes: int = 0
    _now_ms: int | None = None

    def __post_init__(self) -> None:
        plan, segments = self.plan, len(self.design.segments)
        # One row more than there are segments: what is missing or unknown learns with it, and is not served.
        self._belief = Posterior.vague(segments + 1, len(self.design.levels), plan.everywhere, plan.within)
        self._quick = self._belief
        self._change = np.zeros(segments + 1)
        self.guard = Guard(plan.harm, plan.help, plan.allowance)
        self._parts = [Guard(plan.harm, plan.help, plan.allowance) for _ in range(segments)]
        self._table = self.design.table(None)
        self._plain = self._table

    def learn(self, seen: Outcomes, share: Floats, now_ms: int) -> None:
        """Judges what was served by new outcomes, then learns from them.

        Args:
            seen: the outcomes admitted since the last call.
            share: `[m]` their weights for the guard, at most 1.
            now_ms: Unix time.
        """
        self._watch(seen, share)
        self._notice_changes(seen, share)
        plan, rows = self.plan, np.bincount(seen.segment, minlength=len(self._belief.mean) - 1)
        hours = 0.0 if self._now_ms is None else (now_ms - self._now_ms) / HOUR_MS
        # Everywhere sees all traffic, and moves only when most segments do.
        halves = np.append(rows.max(initial=0), rows) / plan.half_life_outcomes
        halves = np.maximum(halves, hours / plan.half_life_hours)
        membership = self.design.membership
        self._belief = self._belief.forgotten(0.5**halves).updated(seen, membership)
        self._quick = self._quick.forgotten(0.5 ** (halves * plan.quicker)).updated(seen, membership)
        self._now_ms, self.outcomes = now_ms, self.outcomes + len(seen)
        self._table = self._offsets(self._belief)
        self._plain = np.broadcast_to(self._table[-1], self._table.shape)

    def spec(self) -> OverlaySpec | None:
        """What may be served now; None while the guard has it switched off, or nothing was learned."""
        if not self.guard.on or self.outcomes == 0:
            return None
        return self._spec([part.on for part in self._parts])

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything that was learned, as arrays, from which `restored` continues exactly."""
        guards = [(one.on, one.against, one.speaks_for, one.switched) for one in (self.guard, *self._parts)]
        beliefs = {
            f"{name}_{field.name}": getattr(belief, field.name)
            for name, belief in (("belief", self._belief), ("quick", self._quick))
            for field in fields(Posterior)
        }
        return beliefs | {
            "guards": np.array(guards, dtype=np.float64),
            "change": self._change,
            "gain": np.array(self.gain),
            "counts": np.array([self.outcomes, self.changes, -1 if self._now_ms is None else self._now_ms]),
        }

    @classmethod
    def restored(
        cls, design: Design, plan: OverlaySettings, state: Mapping[str, npt.NDArray[Any]]
    ) -> OverlayLearner:
        """Return the learner of a `state`."""
        learner = cls(design, plan)
        learner._belief, learner._quick = (
            Posterior(**{field.name: state[f"{name}_{field.name}"] for field in fields(Posterior)})
            for name in ("belief", "quick")
        )
        for guard, (on, against, speaks_for, switched) in zip(
            (learner.guard, *learner._parts), state["guards"].tolist(), strict=True
        ):
            guard.on, guard.against, guard.speaks_for = bool(on), against, speaks_for
            guard.switched = int(switched)
        learner._change, learner.gain = state["change"].copy(), float(state["gain"])
        learner.outcomes, learner.changes, now_ms = (int(one) for one in state["counts"])
        learner._now_ms = None if now_ms < 0 else now_ms
        if learner.outcomes:
            learner._table = learner._offsets(learner._belief)
            learner._plain = np.broadcast_to(learner._table[-1], learner._table.shape)
        return learner

    @property
    def off(self) -> tuple[str, ...]:
        """The segments whose own offsets are switched off."""
        return tuple(n for n, part in zip(self.design.segments, self._parts, strict=True) if not part.on)

    def _offsets(self, belief: Posterior) -> Floats:
        """`[segments + 1, K]`, the last row for what is missing or unknown."""
        mean, limit = belief.mean, self.plan.limit
        own = np.append(mean[1:-1], np.zeros((1, mean.shape[1])), axis=0)
        return np.asarray(np.clip((mean[0] + own) @ self.design.membership.T, -limit, limit))

    def _notice_changes(self, seen: Outcomes, share: Floats) -> None:
        """Where a belief that forgets sooner foretells better beyond chance, takes it over.

        While the belief is right the sooner one's likelihood ratio to it is an e-value, so it is thrown
        away for nothing at most once in `harm` outcomes of the segment.
        """
        if len(seen) == 0 or self.outcomes == 0:
            return
        long, short = (said(seen, self._offsets(belief)) for belief in (self._belief, self._quick))
        steps = np.log1p(share * (short / long - 1)) - self.plan.allowance
        for code in np.unique(seen.segment):
            self._change[code], most = cusum(self._change[code], steps[seen.segment == code])
            if most >= np.log(self.plan.harm):
                self._belief = self._belief.segment_from(self._quick, int(code))
                self._change[code] = 0.0
                self.changes += 1

    @property
    def table(self) -> Floats:
        """`[segments + 1, K]` the offsets of `spec()`, faster."""
        if not self.guard.on:
            return np.zeros_like(self._table)
        on = np.array([part.on for part in self._parts] + [False])
        return np.where(on[:, None], self._table, self._plain)

    def _spec(self, on: list[bool]) -> OverlaySpec:
        mean, design = self._belief.mean, self.design
        return OverlaySpec(
            segment=design.segment,
            limit=self.plan.limit,
            everywhere=design.named(mean[0]),
            segments={
                name: design.named(mean[1 + i])
                for i, name in enumerate(design.segments)
                if on[i] and bool(np.any(mean[1 + i]))
            },
        )

    def _watch(self, seen: Outcomes, share: Floats) -> None:
        """Against what was fitted before these outcomes were known."""
        if len(seen) == 0 or self.outcomes == 0:
            return

        with_it, plain = said(seen, self._table), said(seen, self._plain)
        nothing = said(seen, np.zeros_like(self._table))
        for code in np.unique(seen.segment):
            if code < len(self._parts):
                own = seen.segment == code
                self._parts[code].watch(with_it[own], plain[own], share[own])
        # The whole is judged by what is left of it: one bad segment must not take the others with it.
        on = np.append([part.on for part in self._parts], False)[seen.segment]
        served = np.where(on, with_it, plain)
        self.gain += float((share * np.log(served / nothing)).sum())
        self.guard.watch(served, nothing, share)


def said(seen: Outcomes, table: Floats) -> Floats:
    """`[m]` the probability of what happened, with these offsets on the oracle's logit."""
    p = sigmoid(seen.logit + table[seen.segment, seen.action])
    return np.where(seen.reward == 1, p, 1 - p)
