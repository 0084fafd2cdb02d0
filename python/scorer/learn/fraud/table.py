"""Reads the data of a score checkpoint: decisions with features, labels, weights and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scorer.bundle import Feature, encode
from scorer.bundle.lineage import digest_of
from scorer.errors import BundleError
from scorer.learn.errors import DataError
from scorer.learn.fraud.settings import ColumnSettings
from scorer.stats.arrays import Bools, Floats, Ints, Rows32

DAY_MS: Final = 86_400_000


@dataclass(frozen=True)
class FraudTable:
    """Labelled decisions in order of time; those of one time are in the order of the file.

    Attributes:
        features: The features, in the order of the columns of `rows`.
        rows: `[n, features]` encoded features.
        time_ms: `[n]` Unix times of the decisions, ascending.
        label: `[n]` True for fraud.
        weight: `[n]` weights, above 0 for rows that count.
        known_ms: `[n]` Unix times at which the labels were known; 0 where a policy assumes the label; None:
            the data does not have them.
        entity: `[n]` codes of the entities; None: there are none.
        amount: `[n]` amounts.
        repeated: `[n]` whether an earlier row has the same id and label.
        digest: Digest of the file.
    """

    features: tuple[Feature, ...]
    rows: Rows32
    time_ms: Ints
    label: Bools
    weight: Floats
    known_ms: Ints | None
    entity: Ints | None
    amount: Floats
    repeated: Bools
    digest: str

    def __len__(self) -> int:
        return len(self.time_ms)

    @property
    def day(self) -> Ints:
        """`[n]` whole days since 1970."""
        return self.time_ms // DAY_MS

    def take(self, rows: npt.NDArray[Any]) -> FraudTable:
        """Return some rows, given by ascending positions or a mask."""
        return replace(
            self,
            rows=self.rows[rows],
            time_ms=self.time_ms[rows],
            label=self.label[rows],
            weight=self.weight[rows],
            known_ms=None if self.known_ms is None else self.known_ms[rows],
            entity=None if self.entity is None else self.entity[rows],
            amount=self.amount[rows],
            repeated=self.repeated[rows],
        )

    def only(self, features: Sequence[str]) -> FraudTable:
        """Return the table with some of the features, in the order of the table."""
        chosen = [at for at, one in enumerate(self.features) if one.name in features]
        kept = tuple(self.features[at] for at in chosen)
        return replace(self, features=kept, rows=np.ascontiguousarray(self.rows[:, chosen]))

    def known_by(self, moment_ms: int, delay_days: float) -> Bools:
        """Return the rows, `[n]`, whose label was known at a moment, or assumed for its age.

        Args:
            moment_ms: Unix time.
            delay_days: The age that is enough where the data has no time of the label.
        """
        old = self.time_ms <= moment_ms - round(delay_days * DAY_MS)
        if self.known_ms is None:
            return np.asarray(old)
        return np.where(self.known_ms > 0, self.known_ms <= moment_ms, old)


def read_table(path: Path, features: Sequence[Feature], columns: ColumnSettings) -> FraudTable:
    """Read a Parquet file: what `scorer learn label` wrote, or a plain table.

    A category is given by its text, or by its code as `scorer learn label` writes it. Ranges are not checked
    here; see `scorer.learn.fraud.checks`.

    Args:
        path: The file.
        features: The features of the model.
        columns: Names of the other columns.

    Raises:
        DataError: The file cannot be read, or a column is missing, has another type or empty values.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f'data "{path}": not a readable Parquet file ({error})') from None
    with file:
        there = set(file.schema_arrow.names)
        optional = {name for name in (columns.weight, columns.known) if name in there}
        if columns.id in there:
            optional.add(columns.id)
        wanted = [*(one.name for one in features), columns.time, columns.label]
        wanted += [name for name in (columns.entity, columns.amount) if name]
        missing = sorted(set(wanted) - there)
        if missing:
            raise DataError(
                f'data "{path}": column {", ".join(missing)} is missing; add it, or name it in '
                "[fraud.columns] of learn.toml"
            )
        table = file.read(columns=sorted({*wanted, *optional}))
    if table.num_rows == 0:
        raise DataError(f'data "{path}": there are no rows; label a longer period')
    read = _Columns(str(path), table)
    time_ms = read.times(columns.time)
    order = np.argsort(time_ms, kind="stable")
    label = read.integers(columns.label)
    if not np.isin(label, (0, 1)).all():
        raise DataError(
            f'data "{path}": {columns.label} must be 0 or 1; {label[~np.isin(label, (0, 1))][0]} is not'
        )
    n = table.num_rows
    weight = read.numbers(columns.weight) if columns.weight in optional else np.ones(n)
    if not (np.isfinite(weight).all() and (weight >= 0).all()):
        raise DataError(f'data "{path}": {columns.weight} must be finite and not negative')
    amount = read.numbers(columns.amount) if columns.amount else np.ones(n)
    if not (np.isfinite(amount).all() and (amount >= 0).all()):
        raise DataError(f'data "{path}": {columns.amount} must be finite and not negative')
    whole = FraudTable(
        features=tuple(features),
        rows=read.features(features),
        time_ms=time_ms,
        label=label == 1,
        weight=weight,
        known_ms=read.integers(columns.known) if columns.known in optional else None,
        entity=read.codes(columns.entity) if columns.entity else None,
        amount=amount,
        repeated=np.zeros(n, bool),
        digest=digest_of(path),
    )
    ids = read.codes(columns.id)[order] if columns.id in optional else None
    whole = whole.take(order)
    return whole if ids is None else replace(whole, repeated=_repeated(ids * 2 + whole.label))


class _Columns:
    """The columns of a table as arrays; errors name the file and the column."""

    def __init__(self, path: str, table: Any) -> None:
        self._path, self._table = path, table

    def integers(self, name: str) -> Ints:
        import pyarrow as pa

        return np.asarray(self._cast(name, pa.int64()), np.int64)

    def numbers(self, name: str) -> Floats:
        import pyarrow as pa

        return np.asarray(self._cast(name, pa.float64()), np.float64)

    def times(self, name: str) -> Ints:
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self._table[name]
        if pa.types.is_timestamp(column.type):
            column = pc.cast(column, pa.timestamp("ms", tz=column.type.tz), safe=False)
            self._full(name)
            return np.asarray(pc.cast(column, pa.int64()).to_numpy(), np.int64)
        return self.integers(name)

    def codes(self, name: str) -> Ints:
        """Return `[n]` codes of the values, by their first appearance."""
        self._full(name)
        column = self._table[name].combine_chunks()
        return np.asarray(column.dictionary_encode().indices.to_numpy(zero_copy_only=False), np.int64)

    def features(self, features: Sequence[Feature]) -> Rows32:
        import pyarrow as pa

        given = []
        for one in features:
            kind = self._table[one.name].type
            is_code = one.type == "category" and (pa.types.is_floating(kind) or pa.types.is_integer(kind))
            number = one.type != "category" or is_code
            change = {"type": "number", "categories": []} if number else {"unknown_category": "missing"}
            loose: dict[str, Any] = {"minimum": None, "maximum": None, "missing": "allow"}
            given.append(one.model_copy(update=change | loose))
        try:
            return encode(given, self._table)
        except BundleError as error:
            raise DataError(f'data "{self._path}": {error}') from None

    def _cast(self, name: str, kind: Any) -> npt.NDArray[Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        self._full(name)
        try:
            return np.asarray(pc.cast(self._table[name], kind).to_numpy())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            what = "integers" if pa.types.is_integer(kind) else "numbers"
            raise DataError(
                f'data "{self._path}": column {name} is {self._table[name].type}; it must contain {what}'
            ) from None

    def _full(self, name: str) -> None:
        if empty := self._table[name].null_count:
            raise DataError(
                f'data "{self._path}": column {name} has {empty:,} empty values; remove these rows'
            )


def _repeated(keys: Ints) -> Bools:
    """Return which values, `[n]`, appear at an earlier position too."""
    _, first = np.unique(keys, return_index=True)
    repeated = np.ones(len(keys), bool)
    repeated[first] = False
    return repeated
