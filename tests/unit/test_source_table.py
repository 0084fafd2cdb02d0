"""Test that a table of all servers' rows can be a source without a change of its readers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from joining import HOUR, POINT, SETTINGS, START, Maker, known, outcome
from logs import write_segment

from scorer.learn.join.joining import join
from scorer.log import BundleShelf
from scorer.log.reading import LogFinding
from scorer.log.source.directories import log_directories
from scorer.log.source.interface import DecisionSource, ReadPosition, SourceBatch, SourceQuery
from scorer.log.source.rows import SCHEMAS

TIMES = {"decisions": "decided_at_us", "outcomes": "received_at_us", "deliveries": "decided_at_us"}


@dataclass
class TableSource:
    """Parquet files of all servers with the columns server, checkpoint, sequence and time."""

    path: Path
    servers: tuple[str, ...]
    delivered: list[int] = field(default_factory=list)
    """Number of rows of each batch."""

    @property
    def logs(self) -> list[TableLog]:
        return [TableLog(self, server) for server in self.servers]

    def append(self, logs: Mapping[str, Path], after: Mapping[str, int]) -> None:
        """Add the rows of directories from given sequences on, as a shipper would."""
        for server, path in logs.items():
            [log] = log_directories([path]).logs
            for at, batch in enumerate(log.read(SourceQuery())):
                rows = batch.rows.filter(pa.compute.greater_equal(batch.rows["sequence"], after[server]))
                time = rows[TIMES[batch.kind]] if batch.kind in TIMES else pa.array([1 << 62] * len(rows))
                about = {"server": server, "checkpoint": batch.checkpoint}
                for name, text in about.items():
                    rows = rows.append_column(name, pa.array([text] * len(rows), pa.string()))
                folder = self.path / batch.kind
                folder.mkdir(parents=True, exist_ok=True)
                name = f"{server}-{after[server]}-{at}.parquet"
                pq.write_table(rows.append_column("time", time), folder / name)


@dataclass(frozen=True)
class TableLog:
    table: TableSource
    name: str
    erasures: str = ""

    def read(self, query: SourceQuery, after: ReadPosition | None = None, advance: Any = None) -> TablePass:
        return TablePass(self, query, after)


class TablePass:
    erased = False
    first_sequence = 0
    segments: Mapping[str, bool] = {}
    findings: tuple[LogFinding, ...] = ()

    def __init__(self, log: TableLog, query: SourceQuery, after: ReadPosition | None) -> None:
        self._log, self._query = log, query
        self.continued, self.since_us = after is not None, query.since_us
        self.position = after or ReadPosition(log.name, 0, "")

    def __iter__(self) -> Iterator[SourceBatch]:
        start, following = self.position.next, self.position.next
        for kind, schema in SCHEMAS.items():
            path = self._log.table.path / kind
            if not path.is_dir():
                continue
            wanted = (ds.field("server") == self._log.name) & (ds.field("sequence") >= start)
            wanted &= (ds.field("checkpoint") == self._query.checkpoint) & (
                ds.field("time") >= self._query.since_us
            )
            for batch in ds.dataset(path).to_batches(filter=wanted, batch_size=self._query.rows):
                if len(batch):
                    self._log.table.delivered.append(len(batch))
                    following = max(following, batch["sequence"][-1].as_py() + 1)
                    rows = pa.Table.from_batches([batch]).select(schema.names)
                    yield SourceBatch(str(self._query.checkpoint), kind, rows)
        self.position = ReadPosition(self._log.name, following, "table")


@pytest.fixture(scope="module")
def make(built_bundles: dict[str, Path]) -> Maker:
    return Maker(built_bundles["action-1"])


@pytest.fixture(scope="module")
def shelf(built_bundles: dict[str, Path]) -> BundleShelf:
    return BundleShelf([built_bundles["action-1"]])


def joined(source: DecisionSource, shelf: BundleShelf, days: float | None = None, **more: Any) -> Any:
    of = SETTINGS.model_copy(update={"days": days, "rows": 4, "families": ()})
    return join(source, shelf, of, as_of_ms=START + 100 * HOUR, checkpoint=POINT, **more)


def test_a_table_of_all_servers_is_a_source(
    tmp_path: Path, make: Maker, shelf: BundleShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(server: str, *segment: Any) -> None:
        monkeypatch.setattr("logs.LOG", server[:2].encode() * 8)
        write_segment(paths[server], *segment)

    paths = {server: tmp_path / server for server in ("one", "two")}
    others = {"one": "two", "two": "one"}
    for server in paths:
        records = [make.decision(f"{server}-{at}", at) for at in range(10)]
        # Outcomes are in the log of the other server.
        records += [outcome(f"{others[server]}-{at}", at + 1) for at in range(10)]
        write(server, 1, 1, records)
    table, cache = TableSource(tmp_path / "table", ("one", "two")), tmp_path / "cache"
    table.append(paths, {"one": 0, "two": 0})
    directories = log_directories(list(paths.values()))
    wanted = joined(directories, shelf)
    for more in ({}, {"cache": cache}):
        found = joined(table, shelf, **more)
        assert found.experience.digest() == wanted.experience.digest()
        assert found.findings == wanted.findings
    assert max(table.delivered) <= 4

    table.delivered.clear()
    for server in paths:
        write(server, 2, 21, [make.decision(f"{server}-new", 50), outcome(f"{server}-new", 51)])
    table.append(paths, {"one": 21, "two": 21})
    found = joined(table, shelf, cache=cache)
    assert found.experience.digest() == joined(directories, shelf).experience.digest()
    assert sum(table.delivered) == 4, "only what is new was read"

    # A window is passed on to the table: rows that cannot matter are not read, and a wider one is read again.
    table.delivered.clear()
    narrow = joined(table, shelf, 2.5, cache=tmp_path / "narrow")
    assert set(known(narrow)) == {"one-new", "two-new"}
    assert sum(table.delivered) == 4
    assert narrow.experience.digest() == joined(directories, shelf, 2.5).experience.digest()
    table.delivered.clear()
    wide = joined(table, shelf, cache=tmp_path / "narrow")
    assert wide.experience.digest() == found.experience.digest()
    assert sum(table.delivered) == 44
