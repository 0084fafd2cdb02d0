"""Events of a feature set in DuckDB: those that the online store would accept, each once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scorer.features.declaration import FeatureSet
from scorer.features.tables import FeatureTableError, Table, TableSource, quoted

if TYPE_CHECKING:
    import duckdb

SECOND = 1_000_000
AHEAD_US = 5 * SECOND
"""Greatest time by which an event may be ahead of its receipt, in microseconds."""
MAX_ID, MAX_KEY, MAX_TEXT = 80, 128, 128


@dataclass(frozen=True)
class EventCounts:
    """Numbers of the events of one kind."""

    recorded: int
    duplicates: int
    refused: dict[str, int]
    """Numbers of refused events by reason, with the names that the server uses."""


@dataclass(frozen=True)
class EventTable:
    """The events of one kind and when they were received."""

    table: Table
    received_after: int | None = None
    """Seconds from an event to its receipt, for tables without the column `received_at`. None: 0."""


def load_events(
    connection: duckdb.DuckDBPyConnection, declared: FeatureSet, kind: str, events: EventTable
) -> EventCounts:
    """Create the table of one kind of events.

    The table `events KIND` has the columns row, occurred, received (microseconds since 1970), `key ENTITY`,
    `number FIELD` and `text FIELD`.

    Raises:
        FeatureTableError: A column is missing or has another type.
    """
    definition = declared.events[kind]
    source = TableSource(connection, f'events "{kind}"', events.table)
    if "id" not in source.types:
        raise FeatureTableError(f'{source.what}: column "id" is missing; it identifies an event')
    occurred = source.needed_time("occurred_at", "occurred_at_us")
    received = source.time("received_at", "received_at_us")
    if received is not None and events.received_after is not None:
        raise FeatureTableError(
            f'{source.what}: column "received_at" states the receipt; leave out --received-after {kind}=...'
        )
    received = received or f"{occurred} + {(events.received_after or 0) * SECOND}"
    columns = [
        *_columns(source, "key", "varchar", definition.entities),
        *_columns(source, "number", "double", definition.numbers),
        *_columns(source, "text", "varchar", definition.texts),
    ]
    raw, kept = quoted(f"raw {kind}"), quoted(f"events {kind}")
    connection.execute(
        f"create temp table {raw} as select row_number() over () as row, cast(id as varchar) as id, "
        f"{occurred} as occurred, {received} as received, {', '.join(columns)} from {source.relation}"
    )
    missing = connection.execute(
        f"select count(*) from {raw} where occurred is null or received is null"
    ).fetchall()[0][0]
    if missing:
        raise FeatureTableError(f"{source.what}: {missing} events have no time; correct or remove them")
    reason = _reason(definition.entities, definition.numbers, definition.texts, definition.accept_late)
    refused = dict(
        connection.execute(
            f"select reason, count(*) from (select {reason} as reason from {raw}) where reason is not null "
            "group by reason order by reason"
        ).fetchall()
    )
    connection.execute(f"create table {kept} as select * from {raw} where ({reason}) is null")
    connection.execute(f"drop table {raw}")
    duplicates = _remove_duplicates(connection, kept, definition.accept_late * SECOND)
    recorded = connection.execute(f"select count(*) from {kept}").fetchall()[0][0]
    return EventCounts(recorded, duplicates, refused)


def _columns(source: TableSource, what: str, kind: str, names: tuple[str, ...]) -> list[str]:
    absent = [name for name in names if name not in source.types]
    if absent:
        shown = ", ".join(source.types)
        raise FeatureTableError(
            f'{source.what}: column "{absent[0]}" is missing; the columns are {shown}, a column may be empty'
        )
    return [f"cast({quoted(name)} as {kind}) as {quoted(f'{what} {name}')}" for name in names]


def _reason(
    entities: tuple[str, ...], numbers: tuple[str, ...], texts: tuple[str, ...], accept_late: int
) -> str:
    keys = [quoted(f"key {name}") for name in entities]
    cases = [
        (f"id is null or strlen(id) not between 1 and {MAX_ID}", "id"),
        (" and ".join(f"{key} is null" for key in keys), "no_key"),
        (" or ".join(f"coalesce(strlen({key}) not between 1 and {MAX_KEY}, false)" for key in keys), "key"),
    ]
    if numbers:
        found = (quoted(f"number {name}") for name in numbers)
        cases.append((" or ".join(f"coalesce(not isfinite({one}), false)" for one in found), "number"))
    if texts:
        found = (quoted(f"text {name}") for name in texts)
        cases.append((" or ".join(f"coalesce(strlen({one}) > {MAX_TEXT}, false)" for one in found), "text"))
    cases.append((f"occurred > received + {AHEAD_US}", "future"))
    cases.append((f"received - occurred > {accept_late * SECOND}", "late"))
    return f"case {' '.join(f'when {rule} then {reason!r}' for rule, reason in cases)} end"


def _remove_duplicates(connection: duckdb.DuckDBPyConnection, kept: str, remember_us: int) -> int:
    """Remove the events whose id was received before and is remembered. Return their number.

    An id is remembered for `remember_us` from the receipt of the event that was recorded; a later event with
    this id is recorded again. Every pass decides one event of each repeated id.
    """
    connection.execute(
        f"create temp table waiting as select row, id, received from {kept} "
        f"where id in (select id from {kept} group by id having count(*) > 1)"
    )
    connection.execute("create temp table repeated (row bigint)")
    while connection.execute("select count(*) from waiting").fetchall()[0][0]:
        connection.execute(
            "create or replace temp table judged as select waiting.*, "
            "first_value(row) over earliest as first_row, "
            "first_value(received) over earliest as first_received "
            "from waiting window earliest as (partition by id order by received, row)"
        )
        connection.execute(
            "insert into repeated select row from judged "
            f"where row <> first_row and received - first_received <= {remember_us}"
        )
        connection.execute(
            "create or replace temp table waiting as select row, id, received from judged "
            f"where received - first_received > {remember_us}"
        )
    removed: int = connection.execute("select count(*) from repeated").fetchall()[0][0]
    connection.execute(f"delete from {kept} where row in (select row from repeated)")
    connection.execute("drop table waiting; drop table repeated; drop table if exists judged")
    return removed
