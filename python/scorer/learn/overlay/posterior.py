"""The overlay's coefficients: a Gaussian belief, updated by outcomes, that forgets.

Logistic regression on top of a fixed offset, the oracle's logit o:
P(1) = sigmoid(o + z·e + z·s), with z the action's levels, e what holds
everywhere and s what holds in the row's segment. An update is a Newton search
for the mode and its curvature (Laplace). Every quantity that outcomes enter
by is a sum over (segment, action), so its cost hardly depends on their number;
the precision is an arrow (everywhere, and one block per segment) and is kept
and solved as one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from scorer.learn.logistic import sigmoid
from scorer.stats.arrays import Floats, Ints


@dataclass(frozen=True)
class Outcomes:
    """`m` outcomes to learn from.

    Attributes:
        segment: `[m]` code, below the number of segments.
        action: `[m]` position in the catalogue.
        logit: `[m]` the oracle's, from one that did not train on the outcome.
        reward: `[m]` 0 or 1.
        weight: `[m]`.
    """

    segment: Ints
    action: Ints
    logit: Floats
    reward: Floats
    weight: Floats

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True)
class Posterior:
    """A Gaussian over `(S + 1) × L` coefficients; the first row is `everywhere`.

    Attributes:
        mean: `[S + 1, L]`.
        own: `[S + 1, L, L]` precision of each row.
        cross: `[S, L, L]` precision between everywhere and each segment.
        prior: `[S + 1]` precision of a single coefficient before any outcome.
    """

    mean: Floats
    own: Floats
    cross: Floats
    prior: Floats

    @classmethod
    def vague(cls, segments: int, levels: int, everywhere: float, within: float) -> Posterior:
        """Independent coefficients around 0 with these standard deviations."""
        prior = np.append(1 / everywhere**2, np.full(segments, 1 / within**2))
        return cls(
            mean=np.zeros((segments + 1, levels)),
            own=prior[:, None, None] * np.eye(levels),
            cross=np.zeros((segments, levels, levels)),
            prior=prior,
        )

    def forgotten(self, kept: Floats) -> Posterior:
        """Evidence worth `kept` `[S + 1]` of what it was, the rest made up for by the prior."""
        root = np.sqrt(kept)
        own = kept[:, None, None] * self.own
        cross = (root[0] * root[1:])[:, None, None] * self.cross
        pull = _times(own, cross, self.mean)
        own = own + ((1 - kept) * self.prior)[:, None, None] * np.eye(self.mean.shape[1])
        return replace(self, mean=_solve(own, cross, pull), own=own, cross=cross)

    def segment_from(self, other: Posterior, segment: int) -> Posterior:
        """With another belief's word on one segment: its sums of offsets, and its certainty."""
        mean, own, cross = self.mean.copy(), self.own.copy(), self.cross.copy()
        mean[1 + segment] = other.mean[0] + other.mean[1 + segment] - mean[0]
        # Everywhere stays as certain as it was: its block gains what the segment's Schur term gains.
        for sign, belief in ((-1, self), (1, other)):
            tie = belief.cross[segment]
            own[0] += sign * tie @ np.linalg.solve(belief.own[1 + segment], tie.T)
        own[1 + segment], cross[segment] = other.own[1 + segment], other.cross[segment]
        return replace(self, mean=mean, own=own, cross=cross)

    def updated(self, seen: Outcomes, membership: Floats) -> Posterior:
        """With more outcomes.

        Args:
            seen: what was learned.
            membership: `[K, L]` the levels of each action.
        """
        if len(seen) == 0:
            return self
        segments, (count, levels) = len(self.mean) - 1, membership.shape
        cell = seen.segment * count + seen.action
        pairs = (membership[:, :, None] * membership[:, None, :]).reshape(count, -1)

        def total(values: Floats) -> Floats:
            flat = np.bincount(cell, values, segments * count)
            return np.asarray(flat, dtype=np.float64).reshape(segments, count)

        def loss(mean: Floats) -> tuple[float, Floats]:
            x = seen.logit + ((mean[0] + mean[1:]) @ membership.T)[seen.segment, seen.action]
            away = mean - self.mean
            likelihood = float(seen.weight @ (np.logaddexp(0.0, x) - seen.reward * x))
            return likelihood + 0.5 * float((away * _times(self.own, self.cross, away)).sum()), x

        mean, (now, x) = self.mean, loss(self.mean)
        own, cross = self.own, self.cross
        for _ in range(50):
            p = sigmoid(x)
            gradient = total(seen.weight * (seen.reward - p)) @ membership
            bend = (total(seen.weight * p * (1 - p)) @ pairs).reshape(segments, levels, levels)
            own = self.own + np.concatenate([bend.sum(axis=0)[None], bend])
            cross = self.cross + bend
            slope = np.concatenate([gradient.sum(axis=0)[None], gradient])
            step = _solve(own, cross, slope - _times(self.own, self.cross, mean - self.mean))
            size = 1.0
            while True:
                after, x = loss(mean + size * step)
                if after <= now + 1e-12 * abs(now) or size < 1e-4:
                    break
                size /= 2
            mean, now = mean + size * step, after
            if float(np.abs(step).max()) < 1e-7:
                break
        return replace(self, mean=mean, own=own, cross=cross)


def _times(own: Floats, cross: Floats, values: Floats) -> Floats:
    """Precision times coefficients, both as arrows `[S + 1, L]`."""
    out = np.einsum("sij,sj->si", own, values)
    out[0] += np.einsum("sij,sj->i", cross, values[1:])
    out[1:] += np.einsum("sji,j->si", cross, values[0])
    return np.asarray(out)


def _solve(own: Floats, cross: Floats, right: Floats) -> Floats:
    """The coefficients that the precision turns into `right`, by the segments' Schur complement."""
    inner = np.linalg.solve(own[1:], np.concatenate([cross.swapaxes(1, 2), right[1:, :, None]], axis=2))
    block, alone = inner[:, :, :-1], inner[:, :, -1]
    schur = own[0] - np.einsum("sij,sjk->ik", cross, block)
    first = np.linalg.solve(schur, right[0] - np.einsum("sij,sj->i", cross, alone))
    return np.concatenate([first[None], alone - block @ first])
