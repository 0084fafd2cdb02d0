"""The training table of a score checkpoint: features of logged decisions with labels and weights.

The logs are read twice: for the histories of all decisions, and for the features, which are written batch by
batch. A third pass takes a sample for the model of `unlabelled = "modelled"`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scorer.bundle import Feature
from scorer.bundle.lineage import LABELS_KEY
from scorer.durable import sync_directory
from scorer.learn.errors import DataError
from scorer.learn.join.catalogue import carry_columns
from scorer.learn.labels.applied import label_curves, layouts_of, read_labelled
from scorer.learn.labels.curves import MaturityCurves
from scorer.learn.labels.features import LoggedFeatures
from scorer.learn.labels.histories import Histories
from scorer.learn.labels.model import LabelModel, fit_label_model
from scorer.learn.labels.policy import (
    LabelState,
    WeightedLabels,
    curve_rows,
    given_labels,
    later_given,
    weigh,
)
from scorer.learn.labels.segments import APPLIED, RULE
from scorer.learn.labels.settings import LabelSettings
from scorer.stats.arrays import Floats, Ints, Rows32

if TYPE_CHECKING:
    from scorer.log import BundleShelf, ReaderKey
    from scorer.log.reading import Advance
    from scorer.log.source.interface import DecisionSource

COLUMNS: Final = pa.schema(
    [
        ("decision_id", pa.large_string()),
        ("decided_at_ms", pa.int64()),
        ("label", pa.int8()),
        ("label_weight", pa.float64()),
        ("label_kind", pa.string()),
        ("label_known_ms", pa.int64()),
    ]
)
"""Columns of the table before those of the features. `label_kind` is empty, and `label_known_ms` 0, where the
policy assumes the label."""
_GROUP_ROWS: Final = 65_536


@dataclass(frozen=True)
class LabelledTable:
    """What a labelling has written.

    Attributes:
        notes: The policy, what it was applied to, and counts, as in the file's metadata.
        curves: The maturity curves that were used; None if the policy needs none.
    """

    notes: dict[str, Any]
    curves: MaturityCurves | None


def write_labelled(
    source: DecisionSource,
    shelf: BundleShelf,
    settings: LabelSettings,
    output: Path,
    *,
    checkpoint: str,
    as_of_ms: int,
    curves: MaturityCurves | None = None,
    advance: Advance | None = None,
    reader_key: ReaderKey | None = None,
) -> LabelledTable:
    """Write the training table of a score checkpoint, as known at a moment.

    Args:
        source: The logs.
        shelf: The bundles of the decisions.
        settings: The label policy.
        output: Parquet file to write, in one step.
        checkpoint: Name of the checkpoint.
        as_of_ms: The moment, Unix time. Later records are not used.
        curves: Maturity curves with one of the kind "label"; None: they are estimated from the same
            decisions if the policy needs them.
        advance: Called with the progress of each pass over a log.
        reader_key: Key that decrypts sensitive features.

    Raises:
        DataError: No decision is used, no bundle is known, a feature has the name of another column, or the
            model of unlabelled decisions cannot be fitted.
        LogError: No log can be read.
    """
    histories = read_labelled(
        source,
        shelf,
        settings,
        checkpoint=checkpoint,
        as_of_ms=as_of_ms,
        advance=advance,
        reader_key=reader_key,
    )
    given = given_labels(histories, settings)
    if settings.needs_curves and curves is None:
        curves = label_curves(histories, settings)
    labels = weigh(histories, given, settings, curves if settings.needs_curves else None)
    if not labels.used.any():
        raise DataError(
            f'no decision of "{checkpoint}" has a label that counts: {_counts_text(labels)}; shorten the '
            "wait of [labels], or label a later moment"
        )
    reading = _FeaturePass(source, shelf, histories, labels, advance, reader_key)
    model: LabelModel | None = None
    if settings.unlabelled == "modelled" and curves is not None:
        context, rows, weight = reading.sample(_ripe(histories, settings, curves, labels))
        weight = weight * labels.factor[rows]
        model = fit_label_model(context, labels.label[rows].astype(np.int64), weight)
    notes = _notes(histories, settings, labels, curves, model)
    explored = _ExploredCost(histories, labels, settings, reading.features)
    writer = _TableWriter(output, reading.features, notes)
    with writer:
        for batch in reading:
            explored.add(batch)
            writer.add(_rows_of(batch, histories, labels, settings, curves, model))
        notes["counts"].update(writer.counts())
        notes["explored"] = explored.notes()
        notes["left_out"] = dict(sorted(reading.left_out.items()))
    return LabelledTable(notes, curves)


@dataclass(frozen=True)
class FeatureBatch:
    """Some used decisions with their features.

    Attributes:
        row: `[n]` rows of the histories.
        decision_id: The ids.
        context: `[n, features]` in the layout of the newest bundle.
    """

    row: Ints
    decision_id: pa.Array
    context: Rows32


class _FeaturePass:
    """Reads the features of the decisions that are used, in the layout of the newest bundle."""

    def __init__(
        self,
        source: DecisionSource,
        shelf: BundleShelf,
        histories: Histories,
        labels: WeightedLabels,
        advance: Advance | None,
        reader_key: ReaderKey | None,
    ) -> None:
        self._source, self._histories, self._advance = source, histories, advance
        self._used, self._reader_key = labels.used, reader_key
        self.left_out: dict[str, int] = {}
        column = next(one for one in histories.segments if one.name == "bundle")
        self._layouts = layouts_of(histories, shelf)
        known = np.array([value in self._layouts for value in column.values], bool)[column.codes]
        at = np.flatnonzero(self._used & known)
        if not len(at):
            raise DataError(
                f'no bundle of the decisions of "{histories.query.checkpoint}" was found; give the registry '
                "or the bundles with --bundles"
            )
        self.features: list[Feature] = self._layouts[column.values[column.codes[at[-1]]]]
        clash = sorted({one.name for one in self.features} & set(COLUMNS.names))
        if clash:
            raise DataError(
                f'the feature "{clash[0]}" has the name of a column of labels; rename the feature'
            )

    def __iter__(self) -> Iterator[FeatureBatch]:
        self.left_out = {}
        reading = LoggedFeatures(
            self._source, self._histories, self._used, self._layouts, self._advance, self._reader_key
        )
        for one in reading:
            context, fits = carry_columns(one.context, self._layouts[one.digest], self.features)
            self._leave("context cannot be carried over", int((~fits).sum()))
            if fits.any():
                yield FeatureBatch(
                    one.row[fits], one.decision_id.take(pa.array(np.flatnonzero(fits))), context[fits]
                )
        for name, count in reading.left_out.items():
            self._leave(name, count)

    def sample(self, chosen: npt.NDArray[np.bool_], most: int = 200_000) -> tuple[Rows32, Ints, Floats]:
        """Return features, rows and weights of some decisions, at most about `most`.

        Args:
            chosen: ``[n]`` whether a decision may be taken.
            most: Limit. The decisions that are taken stand for those that are not.
        """
        share = min(1.0, most / max(int(chosen.sum()), 1))
        # A hash of the id decides, so that the sample does not depend on the order of the logs.
        taken = chosen & ((self._histories.hashes >> np.uint64(11)) / 2.0**53 < share)
        parts = []
        for batch in self:
            own = taken[batch.row]
            parts.append((batch.context[own], batch.row[own]))
        if not parts:
            return np.empty((0, len(self.features)), np.float32), np.empty(0, np.int64), np.empty(0)
        context = np.concatenate([one for one, _ in parts])
        rows = np.concatenate([one for _, one in parts])
        order = np.argsort(rows, kind="stable")
        return context[order], rows[order], np.full(len(rows), 1 / share)

    def _leave(self, name: str, count: int) -> None:
        if count:
            self.left_out[name] = self.left_out.get(name, 0) + count


class _ExploredCost:
    """Counts the explored decisions of each rule, their positive labels, and what these cost."""

    def __init__(
        self,
        histories: Histories,
        labels: WeightedLabels,
        settings: LabelSettings,
        features: list[Feature],
    ) -> None:
        self._labels, self._settings = labels, settings
        names = [one.name for one in features]
        if settings.amount is not None and settings.amount not in names:
            raise DataError(
                f'labels.amount: "{settings.amount}" is no feature of the newest bundle; there are '
                f"{', '.join(names)}"
            )
        self._column = None if settings.amount is None else names.index(settings.amount)
        self._applied = {
            one.rule: histories.values_of(RULE + one.rule) == APPLIED for one in settings.explored
        }
        self._found: dict[str, dict[str, float]] = {
            one.rule: {"share": one.share, "decisions": 0, "positive": 0, "amount": 0.0, "cost": 0.0}
            for one in settings.explored
        }

    def add(self, batch: FeatureBatch) -> None:
        """Count the decisions of a batch."""
        for rule, applied in self._applied.items():
            own = applied[batch.row]
            positive = own & (self._labels.label[batch.row] == 1)
            found = self._found[rule]
            found["decisions"] += int(own.sum())
            found["positive"] += int(positive.sum())
            if self._column is not None:
                amount = np.nan_to_num(batch.context[:, self._column].astype(np.float64))
                found["amount"] += float(amount[own].sum())
                found["cost"] += float(amount[positive].sum())

    def notes(self) -> dict[str, dict[str, float]]:
        """Return the counts by rule; amounts are 0 if no feature is the amount."""
        return self._found


class _TableWriter:
    """Writes the table to a temporary file, which replaces the output at the end."""

    def __init__(self, output: Path, features: list[Feature], notes: dict[str, Any]) -> None:
        import pyarrow.parquet as pq

        self._output, self._notes = output, notes
        self._temporary = output.with_name(f".{output.name}.tmp")
        self._schema = pa.schema([*COLUMNS, *((one.name, pa.float32()) for one in features)])
        self._buffer: list[pa.Table] = []
        self._rows = self._positive = 0
        self._weight = self._positive_weight = 0.0
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._temporary, self._schema)
        except OSError as error:
            raise DataError(f'"{output}" cannot be written: {error.strerror or error}') from None

    def add(self, columns: dict[str, Any]) -> None:
        """Add rows; `context` has the features."""
        context: Rows32 = columns.pop("context")
        arrays = [
            given if isinstance(given, pa.Array) else pa.array(given, COLUMNS.field(name).type)
            for name, given in ((name, columns[name]) for name in COLUMNS.names)
        ]
        arrays += [pa.array(context[:, at]) for at in range(context.shape[1])]
        self._buffer.append(pa.Table.from_arrays(arrays, schema=self._schema))
        label, weight = columns["label"], columns["label_weight"]
        self._rows += len(label)
        self._positive += int((label == 1).sum())
        self._weight += float(weight.sum())
        self._positive_weight += float(weight[label == 1].sum())
        if sum(len(one) for one in self._buffer) >= _GROUP_ROWS:
            self._flush()

    def counts(self) -> dict[str, float]:
        """Return the number and the weight of the rows, and of those with a positive label."""
        return {
            "table_rows": self._rows,
            "table_positive": self._positive,
            "table_weight": round(self._weight, 6),
            "table_positive_weight": round(self._positive_weight, 6),
        }

    def __enter__(self) -> _TableWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._flush()
                text = json.dumps(self._notes, sort_keys=True, allow_nan=False)
                self._writer.add_key_value_metadata({LABELS_KEY: text.encode()})
            self._writer.close()
            if kind is None:
                self._temporary.replace(self._output)
                sync_directory(self._output.parent)
        except OSError as error:
            raise DataError(f'"{self._output}" cannot be written: {error.strerror or error}') from None
        finally:
            self._temporary.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._buffer:
            self._writer.write_table(pa.concat_tables(self._buffer).combine_chunks())
            self._buffer.clear()


def _rows_of(
    batch: FeatureBatch,
    histories: Histories,
    labels: WeightedLabels,
    settings: LabelSettings,
    curves: MaturityCurves | None,
    model: LabelModel | None,
) -> dict[str, Any]:
    """Return the rows of the table for some decisions. Modelled ones have two, one of each label."""
    row = batch.row
    later = labels.later[row]
    assumed = labels.state[row] == LabelState.ASSUMED
    if model is not None and curves is not None:
        place, of = curve_rows(histories, settings, curves)
        positive = model.probabilities(batch.context)
        for at, curve in enumerate(of):
            own = np.flatnonzero(assumed & (place[row] == at))
            later[own] = later_given(curve, labels.age_ms[row[own]], positive[own])
    weight = np.where(assumed & (settings.unlabelled in {"weighted", "modelled"}), 1 - later, 1.0)
    again = np.flatnonzero(assumed & (later > 0)) if model is not None else np.empty(0, np.int64)
    weight, later = weight * labels.factor[row], later * labels.factor[row]
    order = np.concatenate([np.arange(len(row)), again])
    names = np.array(["", *(one.kind for one in settings.kinds)], dtype=object)
    is_label = labels.state[row] == LabelState.LABELLED
    kind = np.where(is_label, labels.given.kind[row] + 1, 0)
    return {
        "decision_id": batch.decision_id.take(pa.array(order)),
        "decided_at_ms": histories.time_ms[row][order],
        "label": np.concatenate([labels.label[row], np.ones(len(again), np.int8)]),
        "label_weight": np.concatenate([weight, later[again]]),
        "label_kind": names[kind[order]],
        "label_known_ms": np.where(is_label, labels.given.known_ms[row], 0)[order],
        "context": batch.context[order],
    }


def _ripe(
    histories: Histories, settings: LabelSettings, curves: MaturityCurves, labels: WeightedLabels
) -> npt.NDArray[np.bool_]:
    """Return which used decisions, `[n]`, are old enough that hardly a label still comes."""
    place, of = curve_rows(histories, settings, curves)
    wait = np.array([curve.age_of(0.95) for curve in of], np.int64)[place]
    return np.asarray(labels.used & (labels.age_ms >= wait))


def _notes(
    histories: Histories,
    settings: LabelSettings,
    labels: WeightedLabels,
    curves: MaturityCurves | None,
    model: LabelModel | None,
) -> dict[str, Any]:
    query = histories.query
    return {
        "policy": settings.model_dump(mode="json"),
        "checkpoint": query.checkpoint,
        "as_of_ms": query.as_of_ms,
        "first_ms": int(histories.time_ms[0]),
        "last_ms": int(histories.time_ms[-1]),
        "curves": None if curves is None or not settings.needs_curves else curves.digest,
        "counts": {"decisions": len(histories), **labels.counts()},
        "findings": {one.name: one.count for one in histories.findings},
        "model": None if model is None else model.notes(),
    }


def _counts_text(labels: WeightedLabels) -> str:
    return ", ".join(
        f"{count:,} {name.replace('_', ' ')}" for name, count in labels.counts().items() if count
    )
