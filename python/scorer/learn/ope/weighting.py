"""Other importance weights than action by action: over factors, additive factors, several loggers.

Each takes a target and gives the same target with other weights, so every estimator and interval works
on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scorer.learn.errors import DataError
from scorer.learn.ope.logged import Target
from scorer.stats.arrays import Floats, Ints

_BLOCK = 8_192
# Eigenvalues below this, relative to the largest, are what rounding left of 0.
_RANK = 1e-9


def marginal(target: Target, factors: Ints) -> Target:
    """MIPS (Saito and Joachims, 2022): weights `p(e | x, target) / p(e | x, logging)` over an embedding `e`.

    Unbiased if what the control misses depends on the action through these factors alone: for IPW the
    reward itself, for DR (a weaker wish) what is left after the model.

    Args:
        target: needs a log with whole pmfs.
        factors: `[K, f]` codes of the factors that matter, `f >= 1`.
    """
    table = _table(target, factors)
    logging = _logging(target, "MIPS")
    _, group = np.unique(table, axis=0, return_inverse=True)
    group = group.reshape(-1)
    member = np.eye(int(group.max()) + 1)[group]
    ours, theirs = target.pmf @ member, logging @ member
    ratio = np.divide(ours, theirs, out=np.zeros_like(ours), where=theirs > 0)
    return replace(target, other_weights=ratio[:, group], name=f"{target.name}, by factors")


def additive(target: Target, factors: Ints) -> Target:
    """The pseudo-inverse estimator (Swaminathan et al., 2017): weights for rewards that add up over factors.

    The weights are `E_pi[1]' G+ 1(a)` with `G = E_mu[1 1']` of each context. Their variance grows with the
    sum of the factors' weights, not with the product. The weights can be negative. Unbiased if what the
    control misses is a sum of one part per factor.

    Args:
        target: needs a log with whole pmfs.
        factors: `[K, f]` codes of all factors.

    Raises:
        DataError: some context's log cannot tell the target's value even for additive rewards.
    """
    table = _table(target, factors)
    logging = _logging(target, "the pseudo-inverse estimator")
    onehot = np.concatenate([np.eye(int(codes.max()) + 1)[codes] for codes in table.T], axis=1)
    weights = np.empty_like(target.pmf)
    blind = 0
    for start in range(0, len(weights), _BLOCK):
        rows = slice(start, start + _BLOCK)
        gram = np.einsum("nk,kd,ke->nde", logging[rows], onehot, onehot, optimize=True)
        wanted = target.pmf[rows] @ onehot
        solved = np.einsum("nde,ne->nd", np.linalg.pinv(gram, rcond=_RANK, hermitian=True), wanted)
        blind += int((np.abs(np.einsum("nde,ne->nd", gram, solved) - wanted).max(axis=1) > 1e-6).sum())
        weights[rows] = solved @ onehot.T
    if blind:
        raise DataError(
            f"{target.name}: on {blind} of {len(weights)} rows the log lacks a factor level that the target "
            "uses; the pseudo-inverse estimator cannot judge it"
        )
    return replace(target, other_weights=weights, name=f"{target.name}, additive")


def balanced(target: Target, loggers: Sequence[Floats], counts: Sequence[int]) -> Target:
    """Multi-logger weights (Agarwal et al., 2017): over the mixture of all policies that filled the log.

    A row's weight is `pi / sum_m (n_m / n) mu_m`, so a choice that one policy rarely makes and another
    often makes is no longer heavy. Every logging policy must be evaluated on every row.

    Args:
        target: any.
        loggers: each policy's pmf on all rows, `[n, K]`.
        counts: rows that each has filled.
    """
    if len(loggers) != len(counts) or sum(counts) != len(target.logged) or min(counts, default=0) < 0:
        raise DataError(
            f"balanced weights: {len(loggers)} loggers with {sum(counts)} rows do not make up "
            f"the log's {len(target.logged)}"
        )
    mixture = np.zeros_like(target.pmf)
    for pmf, count in zip(loggers, counts, strict=True):
        if pmf.shape != mixture.shape:
            raise DataError(f"balanced weights: a logger's pmf has shape {pmf.shape}, not {mixture.shape}")
        mixture += pmf * (count / len(target.logged))
    taken = mixture[np.arange(len(mixture)), target.logged.action]
    if not (taken > 0).all():
        raise DataError(
            f"balanced weights: {int((~(taken > 0)).sum())} rows took an action that no logger takes"
        )
    weights = np.divide(target.pmf, mixture, out=np.zeros_like(mixture), where=mixture > 0)
    return replace(target, other_weights=weights, name=f"{target.name}, balanced")


def _logging(target: Target, what: str) -> Floats:
    if target.logged.pmf is None:
        raise DataError(f"{what} needs a log with whole pmfs, not propensities alone")
    return target.logged.pmf


def _table(target: Target, factors: Ints) -> Ints:
    table = np.asarray(factors)
    if table.ndim != 2 or len(table) != target.pmf.shape[1] or not table.shape[1]:
        raise DataError(
            f"factors have shape {table.shape}; one row for each of {target.pmf.shape[1]} actions is needed"
        )
    # Codes by rank, so that gaps in them cost nothing.
    return np.stack([np.unique(codes, return_inverse=True)[1].reshape(-1) for codes in table.T], axis=1)
