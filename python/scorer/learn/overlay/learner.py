"""Learning an overlay as outcomes come in, every few minutes, between two generations of the oracle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import OverlaySpec
from scorer.learn.overlay.delays import HOUR_MS
from scorer.learn.overlay.design import Design, sigmoid
from scorer.learn.overlay.guard import Guard
from scorer.learn.overlay.posterior import Outcomes, Posterior
from scorer.learn.overlay.settings import OverlaySettings

Floats = npt.NDArray[np.float64]


@dataclass
class OverlayLearner:
    """Learns one overlay; a new generation of the oracle begins a new one.

    Attributes:
        design: where coefficients lie.
        plan: how to fit.
        outcomes: how many it has learned from.
        gain: by how many nats it said them better than nothing would have, before it knew them.
    """

    design: Design
    plan: OverlaySettings
    outcomes: int = 0
    gain: float = 0.0
    _now_ms: int | None = None

    def __post_init__(self) -> None:
        plan, segments = self.plan, len(self.design.segments)
        # One row more than there are segments: what is missing or unknown learns with it, and is not served.
        self._belief = Posterior.vague(segments + 1, len(self.design.levels), plan.everywhere, plan.within)
        self.guard = Guard(plan.harm, plan.help, plan.allowance)
        self._parts = [Guard(plan.harm, plan.help, plan.allowance) for _ in range(segments)]
        self._table = self.design.table(None)
        self._plain = self._table

    @property
    def posterior(self) -> Posterior:
        """What is believed now."""
        return self._belief

    def learn(self, seen: Outcomes, share: Floats, now_ms: int) -> None:
        """Judges what was served by new outcomes, then learns from them.

        Args:
            seen: the outcomes admitted since the last call.
            share: `[m]` their weights for the guard, at most 1.
            now_ms: Unix time.
        """
        self._watch(seen, share)
        plan, rows = self.plan, np.bincount(seen.segment, minlength=len(self._belief.mean) - 1)
        hours = 0.0 if self._now_ms is None else (now_ms - self._now_ms) / HOUR_MS
        # Everywhere sees all traffic, and moves only when most segments do.
        halves = np.append(rows.max(initial=0), rows) / plan.half_life_outcomes
        kept = 0.5 ** np.maximum(halves, hours / plan.half_life_hours)
        self._belief = self._belief.forgotten(kept).updated(seen, self.design.membership)
        self._now_ms, self.outcomes = now_ms, self.outcomes + len(seen)
        mean, limit, levels = self._belief.mean, plan.limit, self.design.membership.T
        own = np.append(mean[1:-1], np.zeros((1, mean.shape[1])), axis=0)
        self._table = np.clip((mean[0] + own) @ levels, -limit, limit)
        self._plain = np.broadcast_to(self._table[-1], self._table.shape)

    def spec(self) -> OverlaySpec | None:
        """What may be served now; None while the guard has it switched off, or nothing was learned."""
        if not self.guard.on or self.outcomes == 0:
            return None
        return self._spec([part.on for part in self._parts])

    @property
    def off(self) -> tuple[str, ...]:
        """The segments whose own offsets are switched off."""
        return tuple(n for n, part in zip(self.design.segments, self._parts, strict=True) if not part.on)

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

        def said(table: Floats) -> Floats:
            p = sigmoid(seen.logit + table[seen.segment, seen.action])
            return np.where(seen.reward == 1, p, 1 - p)

        with_it, plain, nothing = said(self._table), said(self._plain), said(np.zeros_like(self._table))
        for code in np.unique(seen.segment):
            if code < len(self._parts):
                own = seen.segment == code
                self._parts[code].watch(with_it[own], plain[own], share[own])
        # The whole is judged by what is left of it: one bad segment must not take the others with it.
        on = np.append([part.on for part in self._parts], False)[seen.segment]
        served = np.where(on, with_it, plain)
        self.gain += float((share * np.log(served / nothing)).sum())
        self.guard.watch(served, nothing, share)
