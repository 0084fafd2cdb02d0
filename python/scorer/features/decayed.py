"""Values of decayed aggregates in DuckDB, as known at the time of each decision.

The weight of an event is 2 to the power of its negative age in half-lives. Within a block of 64 half-lives,
weights relative to the begin of the block are finite, so running sums in the order of receipt give the sum at
any time. A value is the running sum of the decision's block and the total of the block before. Weights of
earlier events are below 2 to the power of -64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scorer.features.declaration import DeclaredFeature
from scorer.features.events import SECOND
from scorer.features.tables import floor_divide, quoted
from scorer.features.windows import counted_number

if TYPE_CHECKING:
    import duckdb

_BLOCK = 64


def decayed_values(connection: duckdb.DuckDBPyConnection, feature: DeclaredFeature) -> str:
    """Create the table of a feature's values by decision. Returns the expression of the feature over it."""
    half_life_us = (feature.half_life or 1) * SECOND
    length = half_life_us * _BLOCK
    name = quoted(f"values {feature.name}")
    connection.execute(
        "create or replace temp table parts as select code, received, block, "
        f"x * pow(2, greatest((occurred - block * {length}) / {float(half_life_us)}, -1000)) as x from ("
        f"select code, received, occurred, {floor_divide('received', length)} as block, "
        f"cast({counted_number(feature)} as double) as x from {quoted(f'events {feature.event}')} "
        f"join {quoted(f'codes {feature.entity}')} on key = {quoted(f'key {feature.entity}')}) "
        "where x is not null"
    )
    connection.execute(
        "create or replace temp table states as select code, block, received, sum(x) over "
        "(partition by code, block order by received) as x from parts"
    )
    connection.execute(
        "create or replace temp table totals as select code, block + 1 as block, sum(x) as x "
        "from parts group by code, block"
    )
    code, block = quoted(f"code {feature.entity}"), floor_divide("time", length)
    connection.execute(
        f"create or replace temp view asking as select row, time, {code} as code, {block} as block "
        f"from decisions where {code} is not null"
    )
    connection.execute(
        f"create temp table {name} as select asking.row, "
        f"(coalesce(states.x, 0) + coalesce(totals.x, 0) * pow(2, -{_BLOCK})) "
        f"* pow(2, -(time - asking.block * {length}) / {float(half_life_us)}) as value "
        "from asking asof left join states on asking.code = states.code and asking.block = states.block "
        "and asking.time > states.received "
        "left join totals on asking.code = totals.code and asking.block = totals.block"
    )
    connection.execute("drop view asking; drop table parts; drop table states; drop table totals")
    return f"coalesce({name}.value, 0)"
