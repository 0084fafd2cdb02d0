"""Rows of an action checkpoint: the join, and doubly robust terms of every version.

The reward model is the mean of the oracles of all versions. It affects the width of the intervals only: the
doubly robust estimate is unbiased with the propensities of the log, whatever the model is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from scorer.learn.comparison.rows import Advance, ComparedRows, Prepared
from scorer.learn.comparison.settings import ComparisonSettings
from scorer.learn.comparison.versions import OpenVersion
from scorer.learn.comparison.weeks import Week, first_week, week_begin_ms, week_codes, weeks_of
from scorer.learn.experience import Experience, State
from scorer.learn.join.catalogue import carry_columns, map_actions
from scorer.learn.join.joining import join
from scorer.learn.join.settings import JoinSettings
from scorer.learn.ope.estimators import dr_scores
from scorer.learn.ope.logged import Logged, Target
from scorer.learn.ruling import eligible_by_rules
from scorer.stats.arrays import Bools, Floats

if TYPE_CHECKING:
    from scorer.bundle import Action, Feature
    from scorer.log import BundleShelf, ReaderKey
    from scorer.log.source.interface import DecisionSource


def prepare_actions(
    source: DecisionSource,
    shelf: BundleShelf,
    versions: Sequence[OpenVersion],
    joining: JoinSettings,
    settings: ComparisonSettings,
    *,
    checkpoint: str,
    as_of_ms: int,
    advance: Advance = lambda _step, _share: None,
    reader_key: ReaderKey | None = None,
) -> Prepared:
    """Join the decisions with their outcomes, and evaluate every version on them.

    Args:
        source: The logs.
        shelf: The bundles of the decisions and of the versions.
        versions: The versions.
        joining: `[join]` of `learn.toml`.
        settings: Limits and the cost matrix.
        checkpoint: Name of the checkpoint.
        as_of_ms: The moment, Unix time.
        advance: Called with the progress.
        reader_key: Key that decrypts sensitive features.

    Raises:
        LogError: No log can be read.
        DataError: No decision can be used, or sensitive features are withheld.
    """
    found = join(
        source,
        shelf,
        joining,
        as_of_ms=as_of_ms,
        checkpoint=checkpoint,
        advance=lambda done, whole: advance("join", done / whole if whole else 1.0),
        reader_key=reader_key,
    )
    return prepare_experience(
        found.experience,
        shelf,
        versions,
        settings,
        features=tuple(shelf.schema(found.catalogue).features),
        actions=tuple(shelf.catalogue(found.catalogue)),
        as_of_ms=as_of_ms,
        findings={one.name: one.count for one in found.findings},
        advance=advance,
    )


def prepare_experience(
    experience: Experience,
    shelf: BundleShelf,
    versions: Sequence[OpenVersion],
    settings: ComparisonSettings,
    *,
    features: Sequence[Feature],
    actions: Sequence[Action],
    as_of_ms: int,
    findings: dict[str, int] | None = None,
    advance: Advance = lambda _step, _share: None,
) -> Prepared:
    """Evaluate every version on an experience.

    Args:
        experience: The decisions.
        shelf: The bundles of the versions.
        versions: The versions.
        settings: Limits and the cost matrix.
        features: Columns of the contexts.
        actions: The catalogue.
        as_of_ms: The moment, Unix time.
        findings: Number of records that the join does not use, by reason.
        advance: Called with the progress.

    Raises:
        DataError: No decision can be used, or sensitive features are withheld.
    """
    experience.require_features("comparison")
    first = first_week(as_of_ms, settings.weeks)
    experience = experience.take(experience.time_ms >= week_begin_ms(first))
    weeks = _weeks(experience, settings, first, as_of_ms)
    settled = np.array([week.settled for week in weeks], bool)
    place = week_codes(experience.time_ms) - first
    inside = (place >= 0) & (place < settings.weeks)
    inside[inside] = settled[place[inside]]
    left_out = dict(findings or {})
    notes = []
    known = experience.take(inside)
    if len(known) > settings.rows:
        share = settings.rows / len(known)
        keep = np.random.default_rng(0).random(len(known)) < share
        notes.append(f"{int(keep.sum()):,} of {len(known):,} decisions are used.")
        known = known.take(keep)
    empty = np.zeros((len(versions), 0))
    if not len(known):
        rows = _rows(known, known.reward, first, versions, features, settings, empty, empty)
        return Prepared("action", rows, weeks, {}, left_out, tuple(notes))
    logged = Logged.read(known)
    left_out |= logged.excluded
    known = known if logged.kept is None else known.take(logged.kept)
    evaluated, model, missing = _evaluated(known, shelf, versions, features, actions, advance)
    values = np.full((len(versions), len(known)), np.nan)
    ratios = np.full((len(versions), len(known)), np.nan)
    for at, (pmf, fits) in evaluated.items():
        target = Target(logged, pmf, model)
        values[at] = np.where(fits, dr_scores(target), np.nan)
        ratios[at] = np.where(fits, target.weight, np.nan)
    rows = _rows(known, logged.reward, first, versions, features, settings, values, ratios)
    reasons = {(at, week): why for at, why in missing.items() for week in range(settings.weeks)}
    return Prepared("action", rows, weeks, reasons, left_out, tuple(notes))


def _weeks(
    experience: Experience, settings: ComparisonSettings, first: int, as_of_ms: int
) -> tuple[Week, ...]:
    waiting = experience.state == State.IN_FLIGHT
    return weeks_of(
        week_codes(experience.time_ms),
        first=first,
        count=settings.weeks,
        as_of_ms=as_of_ms,
        open_=waiting,
        used=experience.state == State.SETTLED,
        positive=np.nan_to_num(experience.reward) > 0,
        declined=np.zeros(len(experience), bool),
        maturity=(~waiting).astype(np.float64),
        least_maturity=settings.least_maturity,
    )


def _evaluated(
    known: Experience,
    shelf: BundleShelf,
    versions: Sequence[OpenVersion],
    features: Sequence[Feature],
    actions: Sequence[Action],
    advance: Advance,
) -> tuple[dict[int, tuple[Floats, Bools]], Floats, dict[int, str]]:
    """Return distributions `[n, K]` with the rows that fit, the model, and why versions have none."""
    found: dict[int, tuple[Floats, Bools]] = {}
    total, count = np.zeros((len(known), len(known.actions))), np.zeros((len(known), len(known.actions)))
    missing: dict[int, str] = {}
    for at, version in enumerate(versions):
        advance("versions", at / len(versions))
        bundle = None if version.facts.refused else shelf.get(version.facts.digest)
        if bundle is None:
            continue
        if why := _unfit(version, features, actions):
            missing[at] = why
            continue
        rows, fits = carry_columns(known.context, features, version.features)
        pmf = known.pmf.astype(np.float64)
        if fits.any():
            own = replace(known.take(fits), context=rows[fits])
            eligible = eligible_by_rules(bundle, own)
            pmf[fits], reward = bundle.evaluate(own.context, eligible=eligible)
            total[fits] += np.where(eligible, np.nan_to_num(reward), 0.0)
            count[fits] += eligible
        found[at] = pmf, fits
    return found, total / np.maximum(count, 1), missing


def _unfit(version: OpenVersion, features: Sequence[Feature], actions: Sequence[Action]) -> str:
    lacking = sorted({one.name for one in version.features} - {one.name for one in features})
    if lacking:
        return f"the log does not hold its feature{'s' * (len(lacking) > 1)} {', '.join(lacking[:5])}"
    mapped = map_actions(version.actions, actions)
    if not mapped.is_identity or mapped.redefined.any():
        return "its catalogue of actions differs from that of the newest bundle of the log"
    return ""


def _rows(
    known: Experience,
    reward: Floats,
    first: int,
    versions: Sequence[OpenVersion],
    features: Sequence[Feature],
    settings: ComparisonSettings,
    values: Floats,
    ratios: Floats,
) -> ComparedRows:
    position = {one.facts.digest: at for at, one in enumerate(versions)}
    served = np.array([position.get(name, -1) for name in known.bundles] or [-1], np.int64)
    column = next((at for at, one in enumerate(features) if one.name == settings.amount), None)
    amount = np.full(len(known), np.nan) if column is None else known.context[:, column].astype(np.float64)
    return ComparedRows(
        time_us=known.time_ms * 1000,
        week=week_codes(known.time_ms) - first,
        outcome=reward,
        weight=np.ones(len(known)),
        served=served[known.bundle] if len(known) else np.zeros(0, np.int64),
        stopped=np.zeros(len(known), bool),
        amount=amount,
        values=values,
        flags=np.zeros((len(versions), len(known)), bool),
        ratios=ratios,
    )
