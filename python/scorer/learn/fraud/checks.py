"""Checks of the data before a model is trained: what is rejected, what is left out, and what is reported."""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np

from scorer.learn.errors import DataError
from scorer.learn.findings import DataFinding
from scorer.learn.fraud.settings import CheckSettings
from scorer.learn.fraud.table import FraudTable
from scorer.stats.arrays import Bools, Floats
from scorer.stats.distributions import midranks
from scorer.stats.roc import auc

_SAMPLE: Final = 200_000
"""Most negative rows of which the separation by one feature is computed."""
_LEAST: Final = 50
"""Fewest positive labels for which leakage is tested."""


def check_data(table: FraudTable, settings: CheckSettings) -> tuple[FraudTable, tuple[DataFinding, ...]]:
    """Check the data, and return the rows that are used with the findings.

    Args:
        table: The data.
        settings: The rules.

    Raises:
        DataError: A rule rejects the data; the message names every such rule.
    """
    kept, findings = usable_rows(table, settings)
    used = table if kept.all() else table.take(kept)
    if len(used) == 0:
        raise DataError("data: no row is left after the checks: " + "; ".join(one.text for one in findings))
    findings += _label_rate(used, settings)
    findings += _suspects(used, settings)
    if rejected := [one.text for one in findings if one.effect == "rejected"]:
        raise DataError("data: " + "; ".join(rejected))
    return used, tuple(findings)


def usable_rows(table: FraudTable, settings: CheckSettings) -> tuple[Bools, list[DataFinding]]:
    """Return which rows, `[n]`, pass the checks of single rows, and the findings about the others."""
    findings: list[DataFinding] = []
    kept = table.weight > 0
    if ignored := int((~kept).sum()):
        findings.append(DataFinding("weight 0", "excluded", ignored, "rows of weight 0 are left out"))
    if count := int(table.repeated.sum()):
        effect = _effect(settings.duplicates)
        text = f"{count:,} rows repeat the id and label of an earlier row; remove them"
        findings.append(DataFinding("duplicates", effect, count, text))
        kept &= ~table.repeated
    for name, outside in _outside(table).items():
        text = f'{int(outside.sum()):,} rows have a value of "{name}" that the schema rejects; correct them'
        findings.append(
            DataFinding(f"range {name}", _effect(settings.out_of_range), int(outside.sum()), text)
        )
        kept &= ~outside
    return kept, findings


def describe(findings: tuple[DataFinding, ...]) -> list[dict[str, Any]]:
    """Return findings as JSON, for the lineage."""
    return [{"name": one.name, "effect": one.effect, "count": one.count} for one in findings]


def _effect(rule: Literal["reject", "exclude"]) -> Literal["rejected", "excluded"]:
    return "rejected" if rule == "reject" else "excluded"


def _outside(table: FraudTable) -> dict[str, Bools]:
    """Return, by feature, the rows with a value that the schema rejects."""
    found: dict[str, Bools] = {}
    for place, feature in enumerate(table.features):
        values = table.rows[:, place]
        missing = np.isnan(values)
        outside = np.isinf(values)
        if feature.missing == "refuse":
            outside |= missing
        low, high = feature.minimum, feature.maximum
        if feature.type == "category":
            outside |= ~missing & (np.floor(values) != values)
            low, high = 0, len(feature.categories) - 1
        elif feature.type == "flag":
            outside |= ~missing & ~np.isin(values, (0, 1))
        # Values are compared as float32, in which the server reads them.
        if low is not None:
            outside |= values < np.float32(low)
        if high is not None:
            outside |= values > np.float32(high)
        if outside.any():
            found[feature.name] = outside
    return found


def _label_rate(table: FraudTable, settings: CheckSettings) -> list[DataFinding]:
    rate = float(table.weight[table.label].sum() / table.weight.sum())
    low, high = settings.label_rate
    if low <= rate <= high:
        return []
    text = (
        f"{rate:.4%} of the labels are positive, {low:g} to {high:g} is allowed; check the label policy, or "
        "set checks.label_rate"
    )
    return [DataFinding("label rate", "rejected", int(table.label.sum()), text)]


def _suspects(table: FraudTable, settings: CheckSettings) -> list[DataFinding]:
    """Return features that may contain the label, and constant ones."""
    found: list[DataFinding] = []
    positive, negative = np.flatnonzero(table.label), np.flatnonzero(~table.label)
    if len(negative) > _SAMPLE:
        negative = negative[np.linspace(0, len(negative) - 1, _SAMPLE).astype(np.intp)]
    is_tested = len(positive) >= _LEAST and len(negative) >= _LEAST
    rows = np.concatenate([positive, negative])
    labels = table.label[rows]
    delay = None if table.known_ms is None else _delay(table, positive)
    for place, feature in enumerate(table.features):
        values = table.rows[rows, place].astype(np.float64)
        known = values[~np.isnan(values)]
        if not len(known) or (len(known) == len(values) and known.min() == known.max()):
            found.append(
                DataFinding(f"constant {feature.name}", "reported", 1, f'"{feature.name}" has one value only')
            )
            continue
        if not is_tested:
            continue
        effect: Literal["rejected", "reported"] = (
            "reported" if feature.name in settings.trusted else "rejected"
        )
        remedy = "correct it, or list it in checks.trusted"
        # A missing value is a value of its own, below all others.
        ranked = np.where(np.isnan(values), known.min() - 1, values)
        separation = float(auc([ranked], labels)[0][0])
        separation = max(separation, 1 - separation)
        if separation > settings.single_auc:
            text = f'"{feature.name}" alone separates the labels with an AUC of {separation:.4f}; {remedy}'
            found.append(DataFinding(f"leakage {feature.name}", effect, 1, text))
        if delay is not None and delay.any():
            rho = _rank_correlation(ranked[: len(positive)][delay > 0], delay[delay > 0])
            if abs(rho) > settings.delay_correlation:
                text = (
                    f'"{feature.name}" has a rank correlation of {rho:.2f} with the time to the label; '
                    f"{remedy}"
                )
                found.append(DataFinding(f"delay {feature.name}", effect, 1, text))
    return found


def _delay(table: FraudTable, rows: Any) -> Floats:
    assert table.known_ms is not None  # noqa: S101 - the caller has checked it
    known = table.known_ms[rows]
    return np.where(known > 0, known - table.time_ms[rows], 0).astype(np.float64)


def _rank_correlation(one: Floats, other: Floats) -> float:
    if len(one) < _LEAST or one.min() == one.max() or other.min() == other.max():
        return 0.0
    return float(np.corrcoef(midranks(one), midranks(other))[0, 1])
