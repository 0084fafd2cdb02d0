"""Everything that a log says about a bundle, and about the bundle it would replace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.bundle import Bundle, inspect
from scorer.bundle.check import Inspection
from scorer.learn.errors import DataError
from scorer.learn.experience import Experience
from scorer.learn.ope import estimators
from scorer.learn.ope.crossfit import Trees, cross_fit, folds_by_name
from scorer.learn.ope.diagnostics import Diagnostics, diagnose
from scorer.learn.ope.estimate import Estimate, paired, share, slope
from scorer.learn.ope.logged import Logged, Target
from scorer.learn.ope.value_bounds import value_bounds
from scorer.learn.ope.weighting import additive, balanced, marginal
from scorer.learn.oracle import xgboost_types
from scorer.learn.ruling import eligible_by_rules
from scorer.stats.arrays import Floats
from scorer.stats.sequences import asymptotic

# Settings that SLOPE chooses among, beside DR itself; DM is the last resort.
LIMITS = (100.0, 30.0, 10.0, 3.0)
SHRINKAGES = (10_000.0, 1_000.0, 100.0, 10.0)


@dataclass(frozen=True)
class EvaluatedPolicy:
    """One policy on the log.

    Attributes:
        digest: of its bundle.
        estimates: every estimator's word.
        chosen: the name of the one that SLOPE takes.
        unavailable: estimator to why it cannot judge here.
        anytime: lower and upper bound that hold at every n, by betting.
        asymptotic: the asymptotic sequence at the last row, over DR's pseudo-outcomes.
        diagnostics: of its weights.
    """

    digest: str
    estimates: tuple[Estimate, ...]
    chosen: str
    unavailable: dict[str, str]
    anytime: tuple[float, float]
    asymptotic: tuple[float, float]
    diagnostics: Diagnostics

    def as_dict(self) -> dict[str, Any]:
        """Return the evaluation of one policy as plain JSON."""
        return {
            "digest": self.digest,
            "estimates": {found.estimator: found.as_dict() for found in self.estimates},
            "slope": self.chosen,
            "unavailable": self.unavailable,
            "anytime": list(self.anytime),
            "asymptotic": list(self.asymptotic),
            "diagnostics": self.diagnostics.as_dict(),
        }


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found.

    Attributes:
        logged: the measured rate.
        candidate: the bundle in question.
        baseline: the bundle it is compared with; None: the logged policy.
        difference: candidate minus baseline, paired over DR.
        asymptotic: the difference's asymptotic sequence at the last row.
        excluded: reason to rows left out.
    """

    logged: Estimate
    candidate: EvaluatedPolicy
    baseline: EvaluatedPolicy | None
    difference: Estimate
    asymptotic: tuple[float, float]
    excluded: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Return the whole evaluation as plain JSON."""
        return {
            "logged": self.logged.as_dict(),
            "candidate": self.candidate.as_dict(),
            "baseline": None if self.baseline is None else self.baseline.as_dict(),
            "difference": self.difference.as_dict() | {"asymptotic": list(self.asymptotic)},
            "excluded": self.excluded,
        }


def evaluate(
    experience: Experience,
    bundle: Path,
    *,
    baseline: Path | None = None,
    loggers: Sequence[Path] = (),
    factors: Sequence[str] = (),
    folds: int = 5,
    threads: int = 1,
) -> Evaluation:
    """Judges a bundle on a log.

    Args:
        experience: decisions with what became of them.
        bundle: the candidate.
        baseline: compared with it; None: the policy that was logged.
        loggers: bundles that filled the log; with all of them, balanced weights judge too.
        factors: what MIPS takes to matter of an action; none: MIPS does not judge.
        folds: of the cross-fitted reward model.
        threads: for the reward model.

    Raises:
        DataError: the log cannot be evaluated on, or is over another catalogue or schema.
    """
    logged = Logged.read(experience)
    kept = logged.kept
    rows = experience if kept is None else experience.take(kept)
    candidate = _open(bundle, rows)
    model = _model(candidate, rows, folds, threads)
    others = _loggers(loggers, rows)
    chosen = _factors(candidate, factors)
    target = _target(candidate, rows, logged, model, "candidate")
    judged = _judge(candidate, target, others, chosen)
    against, second = estimators.logged_target(target), None
    if baseline is not None:
        other = _open(baseline, rows)
        against = _target(other, rows, logged, model, "baseline")
        second = _judge(other, against, others, chosen)
    difference = paired(estimators.dr(target), estimators.dr(against))
    return Evaluation(
        logged=share(int(rows.reward.sum()), len(rows)),
        candidate=judged,
        baseline=second,
        difference=difference,
        asymptotic=_last(difference.pseudo),
        excluded=dict(logged.excluded),
    )


def _open(path: Path, rows: Experience) -> Inspection:
    rows.require_features("evaluation")
    found = inspect(path)
    if tuple(action.id for action in found.actions) != rows.actions:
        raise DataError(f'"{path}" has another catalogue than the log; give a bundle over the same actions')
    if len(found.data.features) != rows.context.shape[1]:
        raise DataError(
            f'"{path}" takes {len(found.data.features)} features, the log has {rows.context.shape[1]}; '
            "give a bundle with the log's schema"
        )
    return found


def _target(found: Inspection, rows: Experience, logged: Logged, model: Floats, name: str) -> Target:
    bundle = Bundle.load(found.path)
    pmf, _ = bundle.evaluate(rows.context, eligible=eligible_by_rules(bundle, rows))
    return Target(logged, pmf, model, name=name)


def _model(found: Inspection, rows: Experience, folds: int, threads: int) -> Floats:
    actions = np.array(
        [[math.nan if value is None else value for value in action.features] for action in found.actions],
        dtype=np.float32,
    ).reshape(len(found.actions), -1)
    names = np.where(rows.entity != "", rows.entity, rows.decision_id)
    return cross_fit(
        rows.context,
        rows.action,
        rows.reward,
        actions,
        fold=folds_by_name(names, folds),
        learner=Trees(types=tuple(xgboost_types(found.data.columns)), threads=threads),
    )


def _loggers(paths: Sequence[Path], rows: Experience) -> tuple[list[Floats], list[int]] | None:
    """Every logging policy on every row, and how many rows are its own."""
    if not paths:
        return None
    opened = {found.digest: found for found in (_open(path, rows) for path in paths)}
    used = {rows.bundles[code] for code in np.unique(rows.bundle)}
    if missing := sorted(used - set(opened)):
        raise DataError(
            f"balanced weights: give --logger for each bundle of the log; missing: {', '.join(missing)}"
        )
    pmfs, counts = [], []
    for digest in sorted(used):
        bundle = Bundle.load(opened[digest].path)
        pmfs.append(bundle.evaluate(rows.context, eligible=eligible_by_rules(bundle, rows))[0])
        counts.append(int((rows.bundle == rows.bundles.index(digest)).sum()))
    return pmfs, counts


def _factors(found: Inspection, names: Sequence[str]) -> tuple[npt.NDArray[np.int64], list[int]]:
    """`[K, f]` codes of all factors, and the positions of those named."""
    known = list(dict.fromkeys(name for action in found.actions for name in action.factors))
    if unknown := sorted(set(names) - set(known)):
        raise DataError(f"no such factor: {', '.join(unknown)}; there are: {', '.join(known) or 'none'}")
    table = [
        np.unique([action.factors.get(name, "") for action in found.actions], return_inverse=True)[1]
        for name in known
    ]
    codes = np.stack(table, axis=1) if table else np.zeros((len(found.actions), 0))
    return codes.astype(np.int64), [known.index(name) for name in names]


def _judge(
    found: Inspection,
    target: Target,
    loggers: tuple[list[Floats], list[int]] | None,
    factors: tuple[npt.NDArray[np.int64], list[int]],
) -> EvaluatedPolicy:
    candidates = [estimators.dr(target)]
    candidates += [estimators.switch_dr(target, limit) for limit in LIMITS]
    candidates += [estimators.dr_os(target, shrink) for shrink in SHRINKAGES]
    candidates.append(estimators.dm(target))
    choice = slope(candidates)
    estimates = [
        estimators.ipw(target),
        estimators.snipw(target),
        estimators.dm(target),
        estimators.dr(target),
        estimators.sndr(target),
        slope([found for found in candidates if found.estimator.startswith("Switch")]).estimate,
        slope([found for found in candidates if found.estimator.startswith("DRos")]).estimate,
    ]
    unavailable: dict[str, str] = {}
    codes, named = factors
    if named:
        over = marginal(target, codes[:, named])
        estimates += [_renamed(estimators.ipw(over), "MIPS"), _renamed(estimators.dr(over), "MIPS-DR")]
    if codes.shape[1] > 1:
        try:
            over = additive(target, codes)
            estimates += [_renamed(estimators.ipw(over), "PI"), _renamed(estimators.dr(over), "DR-PI")]
        except DataError as error:
            unavailable["PI"] = str(error)
    if loggers is not None:
        over = balanced(target, *loggers)
        estimates += [
            _renamed(estimators.ipw(over), "balanced IPW"),
            _renamed(estimators.dr(over), "balanced DR"),
        ]
    if choice.estimate.estimator not in {found.estimator for found in estimates}:
        estimates.append(choice.estimate)
    bounds = value_bounds(Target(target.logged, target.pmf, name=target.name))
    return EvaluatedPolicy(
        digest=found.digest,
        estimates=tuple(estimates),
        chosen=choice.estimate.estimator,
        unavailable=unavailable,
        anytime=bounds.at(len(target.logged))[1:],
        asymptotic=_last(estimates[3].pseudo),
        diagnostics=diagnose(target),
    )


def _renamed(found: Estimate, name: str) -> Estimate:
    return replace(found, estimator=name)


def _last(pseudo: Floats) -> tuple[float, float]:
    return asymptotic(pseudo).at(len(pseudo))[1:]
