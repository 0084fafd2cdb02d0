"""Reading of tables by DuckDB: checks, selection of units, and the panel.

DuckDB scans the tables on disk with bounded memory. Adopters and a limited number of units that never
adopted are held in memory, 4 bytes for each month and column.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scorer.causal.findings import CausalFindings
from scorer.causal.panel import LEFT_OUT, NEVER, Panel, Places
from scorer.causal.settings import CausalSettings
from scorer.learn.errors import DataError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_MEMORY = "1200MB"
_ROWS = 1_000_000
_HASH = 1_000_000
_MOST_MONTHS = 1_200
_MOST_VALUE = 1e30
"""Values are held as float32, whose largest number is about 3e38."""
_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER")


@dataclass(frozen=True)
class ReadPanel:
    """A panel with what was found when it was read.

    Attributes:
        panel: Values of adopters and controls.
        findings: Broken rules.
        rows: Rows of the table of values.
        currency: Of the values; empty if it is not known.
        product: Name of the product.
    """

    panel: Panel
    findings: CausalFindings
    rows: int
    currency: str
    product: str


def read_panel(
    data: str | Path | pa.Table,
    settings: CausalSettings,
    *,
    adoptions: str | Path | pa.Table | None = None,
    advance: Callable[[str, float], None] = lambda _step, _share: None,
) -> ReadPanel:
    """Read the values of units, and their adoptions.

    Args:
        data: Parquet or CSV file, directory of Parquet files, or Arrow table: one row per unit and month.
        settings: Columns and limits.
        adoptions: Table of adoptions; None: the one of the settings.
        advance: Receives the step and the share of it that is done.

    Raises:
        DataError: A table cannot be read, or breaks a rule that rejects it.
    """
    import duckdb

    with _connection() as connection:
        try:
            return _Reader(connection, settings).read(
                data, settings.adoptions or None if adoptions is None else adoptions, advance
            )
        except duckdb.Error as error:
            # A table can be found faulty in the middle, after its columns were read.
            raise DataError(f"the tables cannot be read to the end: {_reason(error)}; correct them") from None


@contextmanager
def _connection() -> Iterator[duckdb.DuckDBPyConnection]:
    import duckdb

    with (
        tempfile.TemporaryDirectory(prefix="scorer-causal-") as spill,
        duckdb.connect(
            str(Path(spill) / "causal.duckdb"),
            config={"memory_limit": _MEMORY, "temp_directory": spill, "preserve_insertion_order": False},
        ) as connection,
    ):
        yield connection


class _Reader:
    def __init__(self, connection: duckdb.DuckDBPyConnection, settings: CausalSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._findings = CausalFindings()
        self._types: dict[str, str] = {}

    def read(self, data: Any, adoptions: Any, advance: Callable[[str, float], None]) -> ReadPanel:
        advance("checking values", 0.0)
        columns = self._settings.columns
        self._types = self._view("facts", data)
        needed = [columns.unit, columns.period, columns.value, *self._settings.features]
        needed += [*self._settings.exact, *([columns.currency] if columns.currency else [])]
        self._need("DATA", self._types, needed)
        rows, first, months, units, currency = self._scan()
        product = self._adoptions(adoptions)
        self._findings.require()
        advance("selecting units", 0.0)
        self._select(units, first)
        panel = self._panel(rows, first, months, advance)
        self._findings.require()
        return ReadPanel(panel, self._findings, rows, self._settings.currency or currency, product)

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return list(self._connection.execute(query, list(values)).fetchall())

    def _view(self, name: str, data: Any) -> dict[str, str]:
        import duckdb

        try:
            if isinstance(data, str | Path):
                place = Path(data)
                if place.is_dir():
                    source = f"read_parquet({_text(str(place / '**' / '*.parquet'))})"
                elif place.suffix.lower() in {".csv", ".gz", ".tsv"}:
                    source = f"read_csv({_text(str(place))})"
                else:
                    source = f"read_parquet({_text(str(place))})"
                self._connection.execute(f"create view {name} as select * from {source}")
            else:
                self._connection.register(name, data)
            return {row[0]: row[1] for row in self._rows(f"describe {name}")}
        except duckdb.Error as error:
            what = f'"{data}"' if isinstance(data, str | Path) else f"the table of {name}"
            raise DataError(f"{what} cannot be read: {_reason(error)}; give Parquet or CSV") from None

    @staticmethod
    def _need(what: str, types: dict[str, str], names: list[str]) -> None:
        if missing := [one for one in names if one not in types]:
            raise DataError(
                f"{what}: column {', '.join(missing)} is missing; it has {', '.join(types)}. Name the "
                "columns in "
                "[causal.columns]"
            )

    def _scan(self) -> tuple[int, int, int, int, str]:
        """Check all rows in one pass; return rows, first month, months, units (about) and the currency."""
        settings, columns = self._settings, self._settings.columns
        unit, value = _name(columns.unit), _name(columns.value)
        month = _month(columns.period, self._types)
        for name in (columns.value, *settings.features):
            if not _is_number(self._types[name]):
                raise DataError(f'DATA: column "{name}" has type {self._types[name]}; it must be a number')
        bad = " or ".join(
            f"{_name(one)} is null or not isfinite({_name(one)}::double)" for one in settings.features
        )
        large = " or ".join(
            f"isfinite({_name(one)}::double) and abs({_name(one)}::double) > {_MOST_VALUE}"
            for one in (columns.value, *settings.features)
        )
        currency = _name(columns.currency) + "::varchar" if columns.currency else "''"
        found = self._rows(
            f"select count(*), min({month}), max({month}), approx_count_distinct({unit}), "
            f"count(*) filter ({unit} is null), count(*) filter ({month} is null), "
            f"count(*) filter ({value} is null or not isfinite({value}::double)), count(*) filter "
            f"({value} < 0), "
            f"count(*) filter ({bad or 'false'}), count(*) filter ({large}), min(coalesce({currency}, '')), "
            f"max(coalesce({currency}, '')) "
            "from facts"
        )[0]
        rows, first, last, units, no_unit, no_month, no_value, negative, no_feature, too_large, low, high = (
            found
        )
        if not rows:
            raise DataError("DATA: the table has no rows; give one row per unit and month")
        add = self._findings.add
        add("no unit", no_unit)
        add("unreadable period", no_month, self._examples(f"{month} is null"))
        add("missing value", no_value, self._examples(f"{value} is null or not isfinite({value}::double)"))
        add("missing feature", no_feature)
        add("value out of range", too_large, self._examples(large))
        add("negative value" if settings.negative == "reject" else "negative values", negative)
        if low != high:
            add("mixed currencies", 2, [low or "(empty)", high])
        elif high and settings.currency not in ("", high):
            add("mixed currencies", 2, [f"{high} in the rows", f"{settings.currency} in the settings"])
        self._findings.require()
        if last - first >= _MOST_MONTHS:
            raise DataError(
                f"DATA: the periods span {last - first + 1:,} months; at most {_MOST_MONTHS} are possible"
            )
        return int(rows), int(first), int(last - first + 1), int(units), str(high)

    def _examples(self, condition: str) -> list[str]:
        unit, period = _name(self._settings.columns.unit), _name(self._settings.columns.period)
        found = self._rows(f"select {unit}, {period} from facts where {condition} limit 3")
        return [f"{one} {when}" for one, when in found]

    def _adoptions(self, adoptions: Any) -> str:
        """Create the table `adoption`: unit, product, month, number of dates and of empty ones."""
        columns, settings = self._settings.columns, self._settings
        unit, adopted = _name(columns.unit), _name(columns.adopted)
        kind = self._types[columns.unit]
        if adoptions is None:
            self._need("DATA", self._types, [columns.adopted])
            month = _month(columns.adopted, self._types)
            self._connection.execute(
                f"create table adoption as select {unit} as unit, '' as product, min({month}) as month, "
                f"count(distinct {month}) as dates, "
                f"case when count({adopted}) > 0 then count(*) - count({adopted}) else 0 end as empty, "
                f"count(*) filter ({adopted} is not null and {month} is null) as unreadable "
                f"from facts group by {unit} having count({adopted}) > 0"
            )
            contradicting = "dates > 1 or empty > 0"
        else:
            types = self._view("given", adoptions)
            has_product = bool(columns.product) and columns.product in types
            self._need("adoptions", types, [columns.unit, columns.adopted])
            if settings.product and not has_product:
                raise DataError(
                    f'adoptions: column "{columns.product}" is missing; without it, `product` is empty'
                )
            product = f"coalesce({_name(columns.product)}::varchar, '')" if has_product else "''"
            month = _month(columns.adopted, types)
            self._connection.execute(
                f"create table adoption as select try_cast({unit} as {kind}) as unit, {product} as product, "
                f"min({month}) as month, count(distinct {month}) as dates, "
                f"count(*) - count({adopted}) as empty, "
                f"count(*) filter ({adopted} is not null and {month} is null or {unit} is null) as "
                "unreadable "
                "from given group by all"
            )
            # A row without a date states that the unit never adopted.
            contradicting = "empty > 0 and dates > 0"
        wrong = self._rows("select unit from adoption where unreadable > 0 limit 5")
        count = self._rows("select count(*) from adoption where unreadable > 0")[0][0]
        self._findings.add("unreadable adoption", count, [str(one[0]) for one in wrong])
        self._connection.execute("delete from adoption where dates = 0 and unreadable = 0")
        products = [one[0] for one in self._rows("select distinct product from adoption order by 1")]
        chosen = settings.product
        if not chosen and len(products) > 1:
            raise DataError(
                f"adoptions: there are several products ({', '.join(products[:8])}); set `product` to one"
            )
        if chosen and products and adoptions is not None and chosen not in products:
            raise DataError(f'adoptions: no unit adopted "{chosen}"; there are {", ".join(products[:8])}')
        named = adoptions is not None and bool(chosen)
        chosen_rows = chosen if named else (products[0] if products else "")
        self._connection.execute(
            f"create table target as select * from adoption where product = {_text(chosen_rows)}"
        )
        both = self._rows(f"select unit from target where {contradicting} order by 1 limit 5")
        count = self._rows(f"select count(*) from target where {contradicting}")[0][0]
        self._findings.add("in both groups", count, [str(one[0]) for one in both])
        if adoptions is not None:
            again = self._rows("select count(*) from target where dates > 1 and empty = 0")[0][0]
            self._findings.add("repeated adoptions", again)
        self._findings.add("no adopters", int(self._rows("select count(*) from target")[0][0] == 0))
        return chosen or chosen_rows

    def _select(self, units: int, first: int) -> None:
        """Create the table `kept`: units in memory, with their place, adoption month and group."""
        settings, columns = self._settings, self._settings.columns
        unit = _name(columns.unit)
        most = settings.most_controls
        drawn = most and units > most
        condition = ""
        if drawn:
            limit = max(round(_HASH * most / units), 1)
            condition = f"where {unit} in (select unit from target) or hash({unit}) % {_HASH} < {limit}"
        exact = "".join(
            f", min({_name(one)}::varchar) as low{at}, max({_name(one)}::varchar) as high{at}"
            for at, one in enumerate(settings.exact)
        )
        self._connection.execute(
            f"create table chosen as select {unit} as unit, count(*) as rows {exact} from facts {condition} "
            f"group by {unit}"
        )
        for at, one in enumerate(settings.exact):
            changing = self._rows(f"select unit from chosen where low{at} <> high{at} limit 3")
            self._findings.add("changing group", len(changing), [f"{one} of {row[0]}" for row in changing])
        codes = ", ".join(f"low{at}" for at in range(len(settings.exact)))
        group = f"dense_rank() over (order by {codes})" if settings.exact else "0"
        self._connection.execute(
            "create table kept as select c.unit as kept_unit, row_number() over (order by c.unit) - 1 "
            "as place, "
            f"t.month - {first} as adopted, {group} as code "
            "from chosen c left join target t on c.unit = t.unit"
        )
        without = self._rows("select count(*) from target where unit not in (select kept_unit from kept)")[0][
            0
        ]
        without += self._rows("select count(*) from target where unit is null")[0][0]
        self._findings.add("adopters without values", without)
        if drawn:
            never = self._rows("select count(*) from kept where adopted is null")[0][0]
            self._findings.add("controls drawn", never, [f"of about {units:,} units"])

    def _panel(self, rows: int, first: int, months: int, advance: Callable[[str, float], None]) -> Panel:
        settings = self._settings
        table = self._connection.sql(
            "select kept_unit::varchar as unit, adopted, code from kept order by place"
        ).to_arrow_table()
        size = table.num_rows
        names = [settings.columns.value, *settings.features]
        matrices = [np.zeros((size, months), dtype=np.float32) for _ in names]
        self._fill(matrices, names, first, rows, advance)
        adopted = table.column("adopted").fill_null(_NO_MONTH).to_numpy().astype(np.int64)
        groups = table.column("code").to_numpy().astype(np.int64) if settings.exact else None
        return Panel(
            months=tuple(_label(first + at) for at in range(months)),
            values=matrices[0],
            adopted=self._windows(adopted, months),
            features=dict(zip(settings.features, matrices[1:], strict=True)),
            groups=groups,
            others=self._others(size, first),
            units=table.column("unit"),
        )

    def _fill(
        self,
        matrices: list[Any],
        names: list[str],
        first: int,
        rows: int,
        advance: Callable[[str, float], None],
    ) -> None:
        """Write the values of the kept units into the matrices, and check that each month has one row."""
        columns = self._settings.columns
        month = _month(columns.period, self._types)
        shown = ", ".join(f"{_name(one)}::float as v{at}" for at, one in enumerate(names))
        seen = np.zeros(matrices[0].shape, dtype=np.uint8)
        query = (
            f"select k.place::int as place, ({month} - {first})::smallint as month, {shown} "
            f"from facts join kept k on {_name(columns.unit)} = k.kept_unit"
        )
        expected = self._rows("select sum(rows) from chosen")[0][0] or 1
        done = 0
        for batch in self._connection.sql(query).to_arrow_reader(_ROWS):
            at, when = batch.column("place").to_numpy(), batch.column("month").to_numpy()
            flat = at.astype(np.int64) * seen.shape[1] + when
            for place, matrix in enumerate(matrices):
                matrix.reshape(-1)[flat] = batch.column(f"v{place}").to_numpy()
            # Repeats within the batch as well.
            before = np.count_nonzero(seen.reshape(-1)[flat])
            seen.reshape(-1)[flat] = 1
            done += len(flat)
            advance("reading values", min(done / expected, 1.0))
            if before:
                break
        filled = int(seen.sum(dtype=np.int64))
        if filled < done:
            self._repeated(month)
        elif absent := seen.size - filled:
            self._findings.add(
                "absent months" if self._settings.absent == "zero" else "absent months rejected", absent
            )

    def _repeated(self, month: str) -> None:
        columns = self._settings.columns
        unit, period = _name(columns.unit), _name(columns.period)
        found = self._rows(
            f"select {unit}, {month} as month, count(distinct {period}) > 1 as differs, count(*) over () "
            f"from facts join kept on {unit} = kept_unit group by 1, 2 having count(*) > 1 "
            "order by 1, 2 limit 5"
        )
        for name, wanted in (("overlapping periods", True), ("duplicate rows", False)):
            shown = [f"{one} in {_label(when)}" for one, when, differs, _ in found if bool(differs) is wanted]
            self._findings.add(name, found[0][3] if shown else 0, shown)

    def _windows(self, adopted: Places, months: int) -> Places:
        """Return the adoption months, without those whose windows are not complete."""
        settings = self._settings
        found = np.where(adopted == _NO_MONTH, NEVER, adopted)
        shortest = min(settings.horizons)
        known = adopted != _NO_MONTH
        rules = {
            "adopted before the data": known & (adopted < 0),
            "too few months before": known & (adopted >= 0) & (adopted < settings.pre_months),
            "adopted after the data": known & (adopted >= months),
            "too few months after": known
            & (adopted >= settings.pre_months)
            & (adopted < months)
            & (adopted + shortest > months),
        }
        for name, where in rules.items():
            self._findings.add(name, int(where.sum()))
            found = np.where(where, LEFT_OUT, found)
        self._findings.add("no adopters", int(not known.any()))
        if known.any():
            self._findings.add("no complete window", int((found >= 0).sum() == 0))
            self._findings.add("no controls", int((found == NEVER).sum() == 0))
        return np.asarray(found, dtype=np.int64)

    def _others(self, size: int, first: int) -> dict[str, Places]:
        found: dict[str, Places] = {}
        query = (
            f"select a.product, k.place, a.month - {first} as month "
            "from adoption a join kept k on a.unit = k.kept_unit where a.product not in (select product "
            "from target) and a.month is not null"
        )
        for name, at, month in self._connection.execute(query).fetchall():
            found.setdefault(name, np.full(size, NEVER, dtype=np.int64))[at] = max(month, 0)
        return dict(sorted(found.items()))


_NO_MONTH = -1_000_000


def _reason(error: duckdb.Error) -> str:
    return str(error).splitlines()[0]


def _label(month: int) -> str:
    return f"{month // 12:04d}-{month % 12 + 1:02d}"


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _is_number(kind: str) -> bool:
    return kind in {*_NUMBERS, "UBIGINT", "FLOAT", "DOUBLE"} or kind.startswith("DECIMAL")


def _month(column: str, types: dict[str, str]) -> str:
    """Return the SQL of the month of a column: years times 12 plus the month from 0; null if unreadable."""
    name, kind = _name(column), types[column]
    if kind == "DATE" or kind.startswith("TIMESTAMP"):
        return f"(year({name}) * 12 + month({name}) - 1)"
    if kind in _NUMBERS:
        return (
            f"(case when {name} between 190001 and 299912 and {name} % 100 between 1 and 12 "
            f"then {name} // 100 * 12 + {name} % 100 - 1 end)"
        )
    day = f"coalesce(try_strptime({name}::varchar, '%Y-%m'), try_cast({name}::varchar as timestamp))"
    return f"(year({day}) * 12 + month({day}) - 1)"
