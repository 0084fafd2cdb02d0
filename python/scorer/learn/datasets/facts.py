"""What a file of rows contains, and the checks before it is used."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from scorer.batch.encoding import ColumnEncoder
from scorer.bundle import Feature
from scorer.bundle.lineage import digest_of
from scorer.drift.binning import WIDTH, FeatureBins, bins_of
from scorer.errors import BatchError
from scorer.learn.datasets.records import CountedColumn, DatasetRecord, Purpose
from scorer.learn.errors import DataError
from scorer.learn.findings import DataFinding
from scorer.learn.fraud.checks import check_data, usable_rows
from scorer.learn.fraud.settings import FraudSettings
from scorer.learn.fraud.table import FraudTable, read_table
from scorer.stats.arrays import Rows32

LABEL: Final = "label"
"""Name of the counts of labels, which are compared like a feature."""
LABELLED: Final = frozenset({"training", "evaluation"})
"""Purposes that need labels and times."""


def examine(
    path: Path, name: str, purpose: Purpose, features: Sequence[Feature], settings: FraudSettings, by: str
) -> tuple[DatasetRecord, FraudTable]:
    """Read a file, check it, and return its record with the rows that are used.

    Files for training and evaluation need the columns of `scorer learn fraud train`, and their labels are
    checked too. Other files need the features only.

    Args:
        path: Parquet file.
        name: Name of the series of data sets.
        purpose: What the file is used for.
        features: The schema.
        settings: Names of columns, and the rules of the checks.
        by: User who records it.

    Raises:
        DataError: The file cannot be read, or a rule rejects it.
    """
    if purpose in LABELLED:
        table = read_table(path, features, settings.columns)
        used, found = check_data(table, settings.checks)
        columns = [
            *_counted(used),
            _count(bins_of(LABEL, used.label.astype(np.float32), ("0", "1")), used.label),
        ]
        labels: dict[str, Any] = {
            "begins_ms": int(table.time_ms[0]),
            "ends_ms": int(table.time_ms[-1]),
            "positive": int(used.label.sum()),
            "label_rate": float(used.weight[used.label].sum() / used.weight.sum()),
        }
    else:
        table, unknown = _unlabelled(path, features)
        kept, rows = usable_rows(table, settings.checks)
        if unknown and settings.checks.out_of_range == "reject":
            raise DataError(f'data "{path}": row {min(unknown):,}: {unknown[min(unknown)]}')
        kept[list(unknown)] = False
        found = tuple(rows)
        if unknown:
            text = f"{len(unknown):,} rows have a category that the schema rejects; correct them"
            found = (*found, DataFinding("unknown category", "excluded", len(unknown), text))
        if rejected := [one.text for one in found if one.effect == "rejected"]:
            raise DataError("data: " + "; ".join(rejected))
        if not kept.any():
            raise DataError(f'data "{path}": no row is left after the checks; correct the rows')
        used, labels = table.take(kept), {}
        columns = _counted(used)
    record = DatasetRecord(
        name=name,
        purpose=purpose,
        digest=table.digest,
        path=str(path.absolute()),
        size=path.stat().st_size,
        rows=len(table),
        excluded=len(table) - len(used),
        features=tuple(features),
        findings=tuple(found),
        columns=tuple(columns),
        added_ms=time.time_ns() // 1_000_000,
        added_by=by,
        **labels,
    )
    return record, used


def counts_in(bins: FeatureBins, values: Rows32) -> tuple[int, ...]:
    """Return the number of values with each code: bins, missing values, unseen values.

    Args:
        bins: The bins.
        values: `[n]` encoded values.
    """
    counts = np.bincount(bins.codes(values), minlength=WIDTH)
    counts[-1] = len(bins.unseen(values))
    return tuple(int(count) for count in counts)


def _counted(table: FraudTable) -> list[CountedColumn]:
    return [
        _count(bins_of(feature.name, table.rows[:, at], feature.categories), table.rows[:, at])
        for at, feature in enumerate(table.features)
    ]


def _count(bins: FeatureBins, values: Any) -> CountedColumn:
    return CountedColumn(
        name=bins.name,
        edges=bins.edges,
        levels=bins.levels,
        seen=bins.seen,
        counts=counts_in(bins, np.asarray(values, np.float32)),
    )


def _with_codes(feature: Feature, schema: Any) -> Feature:
    """Return a category as a number if its column has codes, as `scorer learn label` writes them (floats)."""
    import pyarrow as pa

    place = schema.get_field_index(feature.name)
    if feature.type == "category" and place >= 0 and pa.types.is_floating(schema.field(place).type):
        return feature.model_copy(update={"type": "number", "categories": []})
    return feature


def _unlabelled(path: Path, features: Sequence[Feature]) -> tuple[FraudTable, dict[int, str]]:
    """Return rows without labels and times, and the rows with a category that the schema rejects."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            encoder = ColumnEncoder([_with_codes(one, file.schema_arrow) for one in features])
            encoder.check(file.schema_arrow, f'data "{path}"')
            whole = file.read(columns=encoder.names).combine_chunks()
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f'data "{path}": not a readable Parquet file ({error})') from None
    except BatchError as error:
        raise DataError(str(error)) from None
    rows = whole.num_rows
    if rows == 0:
        raise DataError(f'data "{path}": there are no rows; give a file with rows')
    encoded, unknown = encoder.encode(whole.to_batches(max_chunksize=rows)[0])
    table = FraudTable(
        features=tuple(features),
        rows=np.ascontiguousarray(encoded.T),
        time_ms=np.zeros(rows, np.int64),
        label=np.zeros(rows, bool),
        weight=np.ones(rows),
        known_ms=None,
        entity=None,
        amount=np.ones(rows),
        repeated=np.zeros(rows, bool),
        digest=digest_of(path),
    )
    # Such rows have no ids, so that equal rows are not duplicates.
    return table, unknown
