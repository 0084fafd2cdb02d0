"""Merchants that adopted a policy: values by merchant and month, and adoptions, from exported decisions.

A merchant adopts in the first month in which a policy other than the default one decided its payments. The
value of a month is the rewarded amount: the sum of outcome, amount and margin over its decisions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scorer.durable import write_atomically
from scorer.learn.errors import DataError

if TYPE_CHECKING:
    import duckdb

VALUES: Final = "values.parquet"
ADOPTIONS: Final = "adoptions.parquet"
TASK: Final = "task.toml"
_MEMORY: Final = "1200MB"


@dataclass(frozen=True)
class MerchantSettings:
    """How decisions become values of merchants.

    Attributes:
        default: Digests of the bundles of the default policy, or their first digits.
        merchant: Column that identifies the merchant.
        outcome: Column of the outcome, 0 to 1.
        amount: Column of the amount; empty: each decision counts 1.
        margin: Share of the amount that is earned.
        least_share: Smallest share of a month's decisions by other policies with which a merchant adopts.
        currency: Of the amounts, for the report.
    """

    default: Sequence[str]
    merchant: str = "entity"
    outcome: str = "outcome_authorised"
    amount: str = "feature_amount"
    margin: float = 1.0
    least_share: float = 0.05
    currency: str = ""


@dataclass(frozen=True)
class MerchantTables:
    """Numbers of what `merchant_tables` wrote."""

    merchants: int
    months: int
    adopters: int
    decisions: int
    without_outcome: int


def merchant_tables(
    decisions: Path,
    folder: Path,
    settings: MerchantSettings,
    advance: Callable[[str, float], None] = lambda _step, _share: None,
) -> MerchantTables:
    """Write the tables of merchants, and a task that reads them.

    The folder receives `values.parquet` (unit, period, value, decisions), `adoptions.parquet` (unit, product,
    adopted) and `task.toml`. Decisions that a fallback answered are of the default policy. Decisions without
    an outcome have no value, and are counted.

    Args:
        decisions: Parquet file of `scorer log export`, or directory of such files.
        folder: Where the tables are written.
        settings: Columns and the default policy.
        advance: Receives the step and the share of it that is done.

    Raises:
        DataError: The decisions cannot be read, or have no merchant that adopted.
    """
    import duckdb

    if not settings.default:
        raise DataError("no default policy is given; name the digest of its bundle")
    source = str(decisions / "**" / "*.parquet") if decisions.is_dir() else str(decisions)
    with (
        tempfile.TemporaryDirectory(prefix="scorer-merchants-") as spill,
        duckdb.connect(
            str(Path(spill) / "merchants.duckdb"), config={"memory_limit": _MEMORY, "temp_directory": spill}
        ) as connection,
    ):
        try:
            connection.execute(f"create view decisions as select * from read_parquet({_text(source)})")
            columns = {row[0] for row in connection.execute("describe decisions").fetchall()}
        except duckdb.Error as error:
            reason = str(error).splitlines()[0]
            raise DataError(
                f'"{decisions}" cannot be read: {reason}; give the file of `scorer log export`'
            ) from None
        needed = [settings.merchant, settings.outcome, "decided_at", "bundle", "fallback_source"]
        needed += [settings.amount] if settings.amount else []
        if missing := [one for one in needed if one not in columns]:
            raise DataError(
                f"decisions: column {', '.join(missing)} is missing; it has {', '.join(sorted(columns))}"
            )
        advance("adding up decisions", 0.0)
        _add_up(connection, settings)
        return _write(connection, folder, settings, advance)


def _add_up(connection: duckdb.DuckDBPyConnection, settings: MerchantSettings) -> None:
    own = " or ".join(
        f"starts_with(replace(bundle::varchar, 'sha256:', ''), {_text(one.removeprefix('sha256:'))})"
        for one in settings.default
    )
    amount = f"{_name(settings.amount)}::double" if settings.amount else "1.0"
    outcome = f"{_name(settings.outcome)}::double"
    connection.execute(
        f"create table cells as select {_name(settings.merchant)}::varchar as unit, "
        "date_trunc('month', decided_at at time zone 'UTC')::date as period, "
        f"coalesce(sum({outcome} * {amount}) * {float(settings.margin)!r}, 0) as value, count(*) as "
        "decisions, "
        f"count(*) filter ({outcome} is null) as missing, "
        f"count(*) filter (not ({own}) and coalesce(fallback_source::varchar, '') = '') as other "
        f"from decisions where coalesce({_name(settings.merchant)}::varchar, '') <> '' group by 1, 2"
    )


def _write(
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    settings: MerchantSettings,
    advance: Callable[[str, float], None],
) -> MerchantTables:
    advance("writing tables", 0.0)
    share = float(settings.least_share)
    connection.execute(
        "create table adopted as select unit, 'policy' as product, min(period) as adopted from cells "
        f"where other > 0 and other >= {share!r} * decisions group by unit"
    )
    numbers = connection.execute(
        "select count(distinct unit), count(distinct period), coalesce(sum(decisions), 0), "
        "coalesce(sum(missing), 0), (select count(*) from adopted) from cells"
    ).fetchall()[0]
    merchants, months, decisions, missing, adopters = (int(one) for one in numbers)
    if not adopters:
        raise DataError("no merchant has decisions of another policy than the default; check --default")
    folder.mkdir(parents=True, exist_ok=True)
    for name, query in (
        (VALUES, "select unit, period, value, decisions from cells order by unit, period"),
        (ADOPTIONS, "select unit, product, adopted from adopted order by unit"),
    ):
        temporary = folder / f".{name}"
        connection.execute(f"copy ({query}) to {_text(str(temporary))} (format parquet)")
        temporary.rename(folder / name)
    currency = f'currency = "{settings.currency}"\n' if settings.currency else ""
    text = f'[causal]\nadoptions = "{ADOPTIONS}"\nproduct = "policy"\n{currency}'
    write_atomically(folder / TASK, text.encode())
    advance("writing tables", 1.0)
    return MerchantTables(merchants, months, adopters, decisions, missing)


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
