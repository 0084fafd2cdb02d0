"""Training tables: the values of features at the time of each decision, computed by DuckDB."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scorer.features.decayed import decayed_values
from scorer.features.declaration import DeclaredFeature, FeatureSet
from scorer.features.distinct import distinct_values
from scorer.features.events import EventCounts, EventTable, load_events
from scorer.features.tables import FeatureTableError, Table, TableSource, arrow, database, literal, quoted
from scorer.features.windows import window_groups, window_values

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

MEMORY_MB = 2048
Step = Callable[[str], None]


@dataclass(frozen=True)
class BuiltFeatures:
    """What a training table was computed from."""

    rows: int
    events: Mapping[str, EventCounts]


def steps(declared: FeatureSet) -> int:
    """Return the number of steps that a build reports."""
    single = sum(1 for feature in declared.features if feature.is_decayed or feature.aggregate == "distinct")
    return len(_kinds(declared)) + len(window_groups(declared.features)) + single + 2


def build_table(
    declared: FeatureSet,
    events: Mapping[str, EventTable],
    decisions: Table,
    out: Path,
    *,
    time_column: str = "time",
    memory_mb: int = MEMORY_MB,
    temporary: Path | None = None,
    step: Step = lambda _: None,
) -> BuiltFeatures:
    """Write a Parquet file with the columns of the decisions and one column (float) for each feature.

    A missing value is null. Rows are in the order of the decisions.

    Args:
        declared: The feature set.
        events: The events of each kind that a feature aggregates.
        decisions: The decisions: `time_column` and a column for each entity, named like it. An entity whose
            column is absent has no key. Other columns, such as labels, are copied.
        out: The file. An earlier one is replaced when the new one is complete.
        time_column: Column with the time of a decision.
        memory_mb: Largest memory of DuckDB, MB.
        temporary: Directory for what exceeds the memory; None for that of the system.
        step: Called with the name of each completed step.

    Raises:
        FeatureTableError: Events or decisions cannot be used, or the file cannot be written.
    """
    unfinished = out.with_name(f".{out.name}-{secrets.token_hex(8)}")
    with _computed(declared, events, decisions, time_column, memory_mb, temporary, step) as computed:
        connection, query, built = computed
        try:
            connection.execute(
                f"copy ({query}) to {literal(str(unfinished))} (format parquet, compression zstd)"
            )
            unfinished.replace(out)
        except OSError as error:
            raise FeatureTableError(f"{out}: it cannot be written: {error.strerror or error}") from error
        finally:
            unfinished.unlink(missing_ok=True)
        step(out.name)
        return built


def values_of(
    declared: FeatureSet,
    events: Mapping[str, EventTable],
    decisions: Table,
    *,
    time_column: str = "time",
    memory_mb: int = MEMORY_MB,
) -> pa.Table:
    """Return the rows that `build_table` writes."""
    with _computed(declared, events, decisions, time_column, memory_mb, None, lambda _: None) as computed:
        connection, query, _ = computed
        return arrow(connection, query)


@contextmanager
def _computed(
    declared: FeatureSet,
    events: Mapping[str, EventTable],
    decisions: Table,
    time_column: str,
    memory_mb: int,
    temporary: Path | None,
    step: Step,
) -> Iterator[tuple[duckdb.DuckDBPyConnection, str, BuiltFeatures]]:
    unknown = sorted(set(events) - set(declared.events))
    if unknown:
        raise FeatureTableError(
            f'events "{unknown[0]}": set {declared.label} has no such kind; correct the name'
        )
    absent = sorted(_kinds(declared) - set(events))
    if absent:
        raise FeatureTableError(f'events "{absent[0]}": set {declared.label} needs them; give their files')
    with database(memory_mb, temporary) as connection:
        columns = _load_decisions(connection, declared, decisions, time_column)
        step("decisions")
        counts = {}
        for kind in sorted(_kinds(declared)):
            counts[kind] = load_events(connection, declared, kind, events[kind])
            step(f"events {kind}")
        raw = _raw_values(connection, declared, step)
        query = _query(declared, columns, raw)
        rows = connection.execute("select count(*) from decisions").fetchall()[0][0]
        yield connection, query, BuiltFeatures(rows, counts)


def _kinds(declared: FeatureSet) -> set[str]:
    return {feature.event for feature in declared.features if feature.event is not None}


def _load_decisions(
    connection: duckdb.DuckDBPyConnection, declared: FeatureSet, decisions: Table, time_column: str
) -> list[str]:
    """Create the tables of decisions and of the codes of their keys. Returns the columns to copy."""
    source = TableSource(connection, "decisions", decisions)
    time = source.needed_time(time_column)
    names = {feature.name.lower() for feature in declared.features}
    clash = [column for column in source.types if column.lower() in names or column == "row"]
    if clash:
        raise FeatureTableError(
            f'decisions: column "{clash[0]}" has the name of a feature, or row; rename it'
        )
    connection.execute(
        f"create table given as select row_number() over () as row, {time} as time_us, * "
        f"from {source.relation}"
    )
    codes, joins = [], []
    for entity in declared.entities:
        code, table = quoted(f"code {entity}"), quoted(f"codes {entity}")
        key = f"nullif(cast(given.{quoted(entity)} as varchar), '')" if entity in source.types else None
        of = f"select distinct {key} as key from given where {key} is not null" if key else "select '' as key"
        connection.execute(
            f"create table {table} as select key, row_number() over (order by key) as code from ({of})"
        )
        if key:
            joins.append(f" left join {table} on {table}.key = {key}")
            codes.append(f", {table}.code as {code}")
        else:
            codes.append(f", cast(null as bigint) as {code}")
    connection.execute(
        f"create table decisions as select given.row, given.time_us as time{''.join(codes)} from given"
        f"{''.join(joins)} order by given.row"
    )
    absent = connection.execute("select count(*) from decisions where time is null").fetchall()[0][0]
    if absent:
        raise FeatureTableError(f'decisions: {absent} rows have no "{time_column}"; correct or remove them')
    return list(source.types)


def _raw_values(
    connection: duckdb.DuckDBPyConnection, declared: FeatureSet, step: Step
) -> dict[str, tuple[str, str]]:
    """Create the tables of values. Returns the table and the expression of each aggregate by name."""
    raw: dict[str, tuple[str, str]] = {}
    for group in window_groups(declared.features):
        for name, expression in window_values(connection, group).items():
            raw[name] = (group.name, expression)
        step(f"{group.event} by {group.entity}, {group.tile} s")
    for feature in declared.features:
        if feature.is_decayed:
            raw[feature.name] = (f"values {feature.name}", decayed_values(connection, feature))
        elif feature.aggregate == "distinct":
            raw[feature.name] = (f"values {feature.name}", distinct_values(connection, declared, feature))
        else:
            continue
        step(feature.name)
    return raw


def _query(declared: FeatureSet, columns: list[str], raw: Mapping[str, tuple[str, str]]) -> str:
    shown = [f"given.{quoted(column)}" for column in columns]
    shown += [f"{_value(declared, feature, raw)} as {quoted(feature.name)}" for feature in declared.features]
    tables = dict.fromkeys(table for table, _ in raw.values())
    joins = "".join(f" left join {quoted(table)} on {quoted(table)}.row = decisions.row" for table in tables)
    return (
        f"select {', '.join(shown)} from decisions join given on given.row = decisions.row{joins} "
        "order by decisions.row"
    )


def _value(declared: FeatureSet, feature: DeclaredFeature, raw: Mapping[str, tuple[str, str]]) -> str:
    default = "null" if feature.default is None else repr(feature.default)
    known = " and ".join(f"{quoted(f'code {entity}')} is not null" for entity in declared.needs(feature))
    if feature.ratio is not None:
        above, below = (raw[part][1] for part in feature.ratio)
        value = f"({above}) / nullif(cast({below} as double), 0)"
    else:
        value = raw[feature.name][1]
    return f"cast(case when {known} then coalesce({value}, {default}) else {default} end as float)"
