"""Values of window aggregates in DuckDB, as known at the time of each decision.

Events of one key are added up in tiles. A decision counts whole tiles, and of a tile the events that were
received before it. For a tile whose last event was received before the decision, that is the tile's total.
For other tiles it is the state after the last event that was received before, which running aggregates in the
order of receipt give. So a value is exact for any delay of events, and a decision reads at most one row for
each tile of its window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scorer.features.declaration import DeclaredFeature
from scorer.features.events import SECOND
from scorer.features.tables import floor_divide, literal, quoted

if TYPE_CHECKING:
    import duckdb

# The aggregate of the events of a tile, and the one that combines tiles.
_ATOMS = {
    "count": ("count", "sum"),
    "sum": ("sum", "fsum"),
    "min": ("min", "min"),
    "max": ("max", "max"),
}
_PARTS = {
    "count": ("count",),
    "sum": ("sum",),
    "mean": ("sum", "count"),
    "min": ("min",),
    "max": ("max",),
    "seconds_since_first": ("min",),
    "seconds_since_last": ("max",),
}


def condition(feature: DeclaredFeature) -> str:
    """Return the expression of the conditions of a feature on an event."""
    rules = [
        f"{quoted(f'text {name}')} in ({', '.join(literal(value) for value in values)})"
        for name, values in sorted(feature.where.items())
    ]
    return " and ".join(rules) or "true"


def counted_number(feature: DeclaredFeature) -> str:
    """Return the expression of what an event adds to a feature; null if the event does not count."""
    if feature.of is not None:
        value = quoted(f"number {feature.of}")
    else:
        value = "occurred" if feature.aggregate in {"seconds_since_first", "seconds_since_last"} else "1"
    return f"case when {condition(feature)} then {value} end"


@dataclass
class WindowGroup:
    """The features that share entity, kind of events and tile, and so one set of tiles."""

    entity: str
    event: str
    tile: int
    features: list[DeclaredFeature] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the group, and of the table of its values."""
        return f"values {self.entity} {self.event} {self.tile}"

    def atoms(self) -> dict[tuple[str, str], str]:
        """Return the columns of tiles by aggregate and by what it is of."""
        found: dict[tuple[str, str], str] = {}
        for feature in self.features:
            for part in _PARTS[feature.aggregate or ""]:
                found.setdefault((part, counted_number(feature)), f"a{len(found)}")
        return found

    def range(self, feature: DeclaredFeature) -> tuple[int, int]:
        """Return how many tiles before that of a decision the counted tiles begin and end."""
        end = feature.delay // self.tile
        return end + feature.tiles - 1, end


def window_groups(features: Sequence[DeclaredFeature]) -> list[WindowGroup]:
    """Group the window aggregates of a set, in a fixed order."""
    groups: dict[tuple[str, str, int], WindowGroup] = {}
    for feature in features:
        if feature.aggregate in _PARTS:
            key = (feature.entity or "", feature.event or "", feature.tile or 1)
            groups.setdefault(key, WindowGroup(*key)).features.append(feature)
    return list(groups.values())


def window_values(connection: duckdb.DuckDBPyConnection, group: WindowGroup) -> dict[str, str]:
    """Create the table of a group's values by decision.

    Returns:
        The expression of each feature over the columns of the table and of `decisions`, by name. It is
        null if no event counts.
    """
    tile_us = group.tile * SECOND
    atoms = group.atoms()
    ranges = [group.range(feature) for feature in group.features]
    first, last = max(start for start, _ in ranges), min(end for _, end in ranges)
    span = first - last + 1
    inputs = ", ".join(f"{of} as {column}" for (_, of), column in atoms.items())
    totals = ", ".join(f"{_ATOMS[part][0]}({column}) as {column}" for (part, _), column in atoms.items())
    states = ", ".join(
        f"{_ATOMS[part][0]}({column}) over received_before as {column}" for (part, _), column in atoms.items()
    )
    tile = floor_divide("occurred", tile_us)
    connection.execute(
        f"create or replace temp table parts as select code, {tile} as tile, received, row, {inputs} "
        f"from {quoted(f'events {group.event}')} join {quoted(f'codes {group.entity}')} "
        f"on key = {quoted(f'key {group.entity}')}"
    )
    connection.execute(
        "create or replace temp table tiles as select code, tile, min(received) as opened, "
        f"max(received) as closed, {totals}, {floor_divide('tile', span)} as block "
        "from parts group by code, tile"
    )
    connection.execute(
        f"create or replace temp table states as select code, tile, received, {states} from parts "
        "semi join (select code, tile from tiles where opened < closed) using (code, tile) "
        "window received_before as (partition by code, tile order by received)"
    )
    code, now_tile = quoted(f"code {group.entity}"), floor_divide("time", tile_us)
    connection.execute(
        "create or replace temp view asking as with placed as "
        f"(select row, time, {code} as code, {now_tile} as now_tile from decisions where {code} is not null) "
        f"select *, {floor_divide(f'(now_tile - {first})', span)} as block from placed union all "
        f"select *, {floor_divide(f'(now_tile - {last})', span)} as block from placed where "
        f"{floor_divide(f'(now_tile - {first})', span)} <> {floor_divide(f'(now_tile - {last})', span)}"
    )
    columns = ", ".join(atoms.values())
    in_range = f"tiles.tile between now_tile - {first} and now_tile - {last}"
    connection.execute(
        "create or replace temp table open_tiles as select asking.row, time, now_tile, code, tile "
        "from asking "
        f"join tiles using (code, block) where {in_range} and opened < time and closed >= time"
    )
    values, expressions = _combined(group, atoms)
    connection.execute(
        f"create temp table {quoted(group.name)} as select row, {', '.join(values)} from ("
        f"select asking.row, now_tile, tile, {columns} from asking join tiles using (code, block) "
        f"where {in_range} and closed < time union all "
        f"select open_tiles.row, now_tile, open_tiles.tile, {columns} from open_tiles asof join states "
        "on open_tiles.code = states.code and open_tiles.tile = states.tile "
        "and open_tiles.time > states.received"
        ") group by row"
    )
    for name in ("parts", "tiles", "states", "open_tiles"):
        connection.execute(f"drop table {name}" if name != "tiles" else "drop view asking; drop table tiles")
    return expressions


def _combined(group: WindowGroup, atoms: dict[tuple[str, str], str]) -> tuple[list[str], dict[str, str]]:
    """Return the columns of the group's table, and the expression of each feature over them."""
    columns: dict[str, str] = {}
    expressions: dict[str, str] = {}
    for feature in group.features:
        start, end = group.range(feature)
        parts = []
        for part in _PARTS[feature.aggregate or ""]:
            combine, atom = _ATOMS[part][1], atoms[part, counted_number(feature)]
            of = f"{combine}({atom}) filter (where tile between now_tile - {start} and now_tile - {end})"
            column = columns.setdefault(of, f"v{len(columns)}")
            parts.append(f"{quoted(group.name)}.{column}")
        match feature.aggregate:
            case "count" | "sum":
                expressions[feature.name] = f"coalesce({parts[0]}, 0)"
            case "mean":
                expressions[feature.name] = f"{parts[0]} / nullif({parts[1]}, 0)"
            case "min" | "max":
                expressions[feature.name] = parts[0]
            case _:
                # `greatest` alone would ignore a null.
                age = f"greatest((decisions.time - {parts[0]}) / {float(SECOND)}, 0.0)"
                expressions[feature.name] = f"case when {parts[0]} is not null then {age} end"
    return [f"{of} as {column}" for of, column in columns.items()], expressions
