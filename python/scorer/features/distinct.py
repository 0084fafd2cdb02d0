"""Estimated numbers of distinct values in DuckDB, as known at the time of each decision.

The estimate is that of HyperLogLog with 1,024 registers over MD5, as in the crate `scorer-features`. A tile
has, for each register and rank, the time at which the rank was first received; a decision takes the greatest
rank that was received before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scorer.features.declaration import DeclaredFeature, FeatureSet
from scorer.features.events import SECOND
from scorer.features.tables import floor_divide, quoted
from scorer.features.windows import condition

if TYPE_CHECKING:
    import duckdb

REGISTERS = 1024
ALPHA = 0.7213 / (1 + 1.079 / REGISTERS)
_LARGEST_RANK = 55


def distinct_values(
    connection: duckdb.DuckDBPyConnection, declared: FeatureSet, feature: DeclaredFeature
) -> str:
    """Create the table of a feature's values by decision. Returns the expression of the feature over it."""
    tile_us, span = (feature.tile or 1) * SECOND, feature.tiles
    event = declared.events[feature.event or ""]
    of = quoted(f"text {feature.of}" if feature.of in event.texts else f"key {feature.of}")
    name = quoted(f"values {feature.name}")
    connection.execute(
        "create or replace temp table ranks as select code, tile, register, rank, min(received) as opened, "
        f"{floor_divide('tile', span)} as block from (select code, tile, received, "
        f"cast(hash & {REGISTERS - 1} as smallint) as register, "
        f"case when hash >> 10 = 0 then {_LARGEST_RANK} "
        "else bit_count(xor(cast(hash >> 10 as bigint), cast(hash >> 10 as bigint) - 1)) end as rank from ("
        f"select code, {floor_divide('occurred', tile_us)} as tile, received, md5_number_lower({of}) as hash "
        f"from {quoted(f'events {feature.event}')} join {quoted(f'codes {feature.entity}')} "
        f"on key = {quoted(f'key {feature.entity}')} where {of} is not null and {condition(feature)})) "
        "group by code, tile, register, rank"
    )
    code = quoted(f"code {feature.entity}")
    last = floor_divide(f"(time - {feature.delay * SECOND})", tile_us)
    connection.execute(
        "create or replace temp view asking as with placed as "
        f"(select row, time, {code} as code, {last} as last from decisions where {code} is not null) "
        f"select *, {floor_divide('last', span)} as block from placed union all "
        f"select *, {floor_divide('last', span)} - 1 as block from placed"
    )
    connection.execute(
        f"create temp table {name} as select row, sum(pow(2, -rank)) as weights, count(*) as used from ("
        "select asking.row, register, max(rank) as rank from asking join ranks using (code, block) "
        f"where tile > last - {span} and tile <= last and opened < time group by asking.row, register) "
        "group by row"
    )
    connection.execute("drop view asking; drop table ranks")
    zeros = f"({REGISTERS} - {name}.used)"
    raw = f"({ALPHA * REGISTERS * REGISTERS} / ({zeros} + {name}.weights))"
    linear = f"{REGISTERS} * ln({float(REGISTERS)} / {zeros})"
    return f"coalesce(case when {raw} <= {2.5 * REGISTERS} and {zeros} > 0 then {linear} else {raw} end, 0)"
