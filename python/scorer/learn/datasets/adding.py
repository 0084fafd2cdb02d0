"""Checking a file against the records, and recording it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from scorer.bundle import Feature
from scorer.drift.binning import FeatureBins
from scorer.learn.datasets.changes import compare, overlaps
from scorer.learn.datasets.facts import LABEL, counts_in, examine
from scorer.learn.datasets.records import CountedColumn, DatasetRecord, DatasetStore, Purpose
from scorer.learn.errors import DataError
from scorer.learn.fraud.settings import FraudSettings
from scorer.learn.fraud.table import FraudTable


def check_dataset(
    store: DatasetStore,
    path: Path,
    name: str,
    purpose: Purpose,
    features: Sequence[Feature],
    settings: FraudSettings,
    *,
    by: str,
    changes: Literal["report", "reject"] = "report",
) -> DatasetRecord:
    """Check a file, compare it with the last one of its name and purpose, and return what would be recorded.

    Args:
        store: The records.
        path: Parquet file.
        name: Name of the series of data sets.
        purpose: What the file is used for.
        features: The schema.
        settings: Names of columns, and the rules of the checks.
        by: User who records it.
        changes: Whether changes and overlapping windows are reported, or reject the file.

    Raises:
        DataError: The file cannot be read, or a rule rejects it.
    """
    record, used = examine(path, name, purpose, features, settings, by)
    series = store.records(name)
    earlier = [one for one in series if one.purpose == purpose and one.digest != record.digest]
    found = overlaps(record, series)
    if earlier:
        found += compare(record, _in_bins_of(earlier[-1], used), earlier[-1])
    if found and changes == "reject":
        raise DataError(f'data "{path}": ' + "; ".join(one.text for one in found))
    return record.model_copy(update={"findings": (*record.findings, *found)})


def _in_bins_of(old: DatasetRecord, used: FraudTable) -> list[CountedColumn]:
    """Return the counts of rows in the bins of an earlier data set, for the columns that both have."""
    values = {feature.name: used.rows[:, at] for at, feature in enumerate(used.features)}
    categories = {feature.name: feature.categories for feature in used.features}
    before = {feature.name: feature.categories for feature in old.features}
    values[LABEL] = used.label.astype(np.float32)
    found = []
    for column in old.columns:
        # Codes of categories are comparable only in the same dictionary.
        if column.name not in values or categories.get(column.name) != before.get(column.name):
            continue
        bins = FeatureBins(column.name, column.edges, column.levels, column.seen)
        found.append(column.model_copy(update={"counts": counts_in(bins, values[column.name])}))
    return found
