"""Outputs of a batch run: parts that appear when they are complete, and the record of the finished parts.

The parts of a directory are `part-00000.parquet` and so on. A single file is made of parts in a directory
beside it, which are joined at the end. The record, `_run.json`, lists the finished parts, so that the run can
be continued. Workers of a cluster write parts to staged files, and the driver gives one file of each part its
name. Readers of tables skip names that start with an underscore.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from scorer.batch.portions import one_line
from scorer.batch.scoring import PROBLEM
from scorer.durable import sync_directory, write_atomically
from scorer.errors import BatchError

RECORD: Final = "_run.json"
LOCK: Final = "_lock"
_FORMAT: Final = 1
_JOINED_ROWS: Final = 1 << 16


@dataclass(frozen=True)
class FinishedPart:
    """A part of the output that is complete.

    Attributes:
        name: Name of its file.
        rows: Number of its rows.
        bad_rows: Number of its rows without results.
        bytes: Size of its file.
        checksum: Checksum of the input's rows, if the input has no stable rows.
    """

    name: str
    rows: int
    bad_rows: int
    bytes: int
    checksum: str = ""


@dataclass
class RunRecord:
    """The record of a run.

    Attributes:
        identity: Bundle, input and settings, which must be the same for the run to be continued.
        at: Time in seconds since 1970 that rules see, in all parts.
        parts: The finished parts, in order.
        complete: Whether every row has been scored.
    """

    identity: Mapping[str, Any]
    at: int
    parts: list[FinishedPart] = field(default_factory=list)
    complete: bool = False


class BatchOutput:
    """The output of a run. One process at a time writes it.

    Args:
        path: A directory for Parquet parts, or a file that ends with .parquet, .pq or .csv.

    Raises:
        BatchError: The path is a file of another kind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_file = path.suffix in {".parquet", ".pq", ".csv"}
        self.is_csv = path.suffix == ".csv"
        self._parts = path.with_name(f".{path.name}.parts") if self.is_file else path
        if not self.is_file and path.is_file():
            raise BatchError(
                f'output "{path}": a file exists; give a directory, or an ending .parquet or .csv'
            )

    @contextmanager
    def opened(self, identity: Mapping[str, Any], at: int) -> Iterator[RunRecord]:
        """Lock the output and yield the record of its run, which is new or is to be continued.

        Args:
            identity: JSON values: bundle, input and settings of the run.
            at: Time in seconds since 1970 that rules see, if the run is new. Otherwise it is the record's.

        Raises:
            BatchError: The output belongs to another run or to another process, or was changed.
        """
        if self.is_file and self.path.exists():
            raise BatchError(f'output "{self.path}": the file exists; remove it or give another output')
        with _writing(self.path):
            self._parts.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._parts / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BatchError(
                    f'output "{self.path}": another process writes it; wait for that process'
                ) from None
            yield self._read(identity, at)
        finally:
            os.close(lock)

    def part(self, number: int) -> Path:
        """Return the path of a part's file."""
        return self._parts / f"part-{number:05d}{'.csv' if self.is_csv else '.parquet'}"

    @contextmanager
    def writing(self, number: int, schema: pa.Schema) -> Iterator[Callable[[pa.RecordBatch], None]]:
        """Yield a function that writes rows to a part, which gets its name when it is complete and on disk.

        Args:
            number: Number of the part, from 0.
            schema: Schema of its rows.

        Raises:
            BatchError: The part cannot be written.
        """
        with writing_file(self.part(number), schema) as write:
            yield write

    def stage(self, number: int, run: str) -> Path:
        """Return a new path for a part that another process writes and `commit` names.

        Args:
            number: Number of the part, from 0.
            run: Hexadecimal name of the run.
        """
        ending = self.part(number).suffix
        return self._parts / f"_staged-{run}-{number:05d}-{secrets.token_hex(8)}{ending}"

    def staged(self, run: str) -> dict[int, Path]:
        """Return one complete file of each part that processes of a run have written.

        Args:
            run: Hexadecimal name of the run.
        """
        with _writing(self.path):
            found = sorted(self._parts.glob(f"_staged-{run}-*"))
        return {int(path.name.split("-")[2]): path for path in found}

    def commit(self, record: RunRecord, staged: Mapping[int, Path], rows: Mapping[int, int | None]) -> None:
        """Give staged files the names of their parts and add them to the record.

        Args:
            record: The record of the run.
            staged: Files by the number of their part.
            rows: The number of rows that each part must have; None if it is not known.

        Raises:
            BatchError: A staged file is missing or has another number of rows, or the output cannot be
                written.
        """
        if not staged:
            return
        finished = [part for part in record.parts if part.name not in {self.part(at).name for at in staged}]
        for number, path in sorted(staged.items()):
            part = self.part(number)
            try:
                about = _finished_part(path, part.name)
            except (pa.ArrowException, OSError) as error:
                raise BatchError(
                    f'output "{path}": a worker has written this file, and it is not readable here: '
                    f"{one_line(error)}; all machines must have the same file system at this path"
                ) from error
            if rows[number] not in {None, about.rows}:
                raise BatchError(
                    f'output "{path}": the file has {about.rows:,} rows and the input {rows[number]:,}; '
                    "remove the file and continue the run"
                )
            finished.append(about)
        with _writing(self.path):
            for number, path in staged.items():
                path.replace(self.part(number))
            sync_directory(self._parts)
        record.parts = sorted(finished, key=lambda part: self._number(part.name))
        self.save(record)

    def numbers(self, record: RunRecord) -> set[int]:
        """Return the numbers of the finished parts."""
        return {self._number(part.name) for part in record.parts}

    def discard_staged(self) -> None:
        """Remove the files that processes have written and that are no parts.

        Raises:
            BatchError: A file cannot be removed.
        """
        with _writing(self.path):
            for pattern in ("_staged-*", "__staged-*"):
                for path in self._parts.glob(pattern):
                    path.unlink(missing_ok=True)

    def save(self, record: RunRecord) -> None:
        """Write the record of the run.

        Raises:
            BatchError: The record cannot be written.
        """
        with _writing(self.path):
            write_atomically(
                self._parts / RECORD, json.dumps({"format": _FORMAT, **asdict(record)}, indent=1).encode()
            )

    def finish(self, record: RunRecord) -> None:
        """Complete the output: mark the run as complete, or join the parts of a single file.

        Raises:
            BatchError: The output cannot be written.
        """
        record.complete = True
        if not self.is_file:
            self.save(record)
            return
        whole = self._parts / f"_whole{self.path.suffix}"
        parts = [self.part(number) for number in range(len(record.parts))]
        with _writing(self.path):
            if self.is_csv:
                _join_csv(parts, whole)
            else:
                _join_parquet(parts, whole)
            _sync(whole)
            whole.replace(self.path)
            sync_directory(self.path.parent)
            shutil.rmtree(self._parts)

    @staticmethod
    def _number(name: str) -> int:
        return int(name.partition("-")[2].partition(".")[0])

    def _read(self, identity: Mapping[str, Any], at: int) -> RunRecord:
        file = self._parts / RECORD
        try:
            found = json.loads(file.read_bytes())
        except FileNotFoundError:
            others = sorted(one.name for one in self._parts.iterdir() if one.name != LOCK)
            if others:
                raise BatchError(
                    f'output "{self.path}": the directory has other files, such as "{others[0]}"; give an '
                    "empty or a new directory"
                ) from None
            record = RunRecord(identity, at)
            self.save(record)
            return record
        except (OSError, ValueError) as error:
            raise BatchError(
                f'output "{file}": the record is not readable: {error}; remove the output'
            ) from error
        if found.get("format") != _FORMAT:
            raise BatchError(f'output "{file}": the record has an unknown format; remove the output')
        now = json.loads(json.dumps(identity))
        for name in {**now, **found["identity"]}:
            if (before := found["identity"].get(name)) != now.get(name):
                what = f"{name}: {_difference(before, now.get(name))}"
                raise BatchError(
                    f'output "{self.path}": it belongs to another run ({what}); give the same again, give '
                    f"another output, or remove {self._parts}"
                )
        # Records of earlier versions have no time, and their bundles have no rules.
        parts = [FinishedPart(**part) for part in found["parts"]]
        record = RunRecord(identity, found.get("at", at), parts, found["complete"])
        for part in record.parts:
            path = self._parts / part.name
            if not path.is_file() or path.stat().st_size != part.bytes:
                raise BatchError(
                    f'output "{path}": the finished part is missing or was changed; remove {self._parts}'
                )
        return record


@contextmanager
def writing_file(path: Path, schema: pa.Schema) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Yield a function that writes rows to a file, which gets its name when it is complete and on disk.

    Args:
        path: The file, which ends with .parquet, .pq or .csv.
        schema: Schema of its rows.

    Raises:
        BatchError: The file cannot be written.
    """
    unfinished = path.with_name(f"_{path.name}.unfinished")
    with _writing(path):
        writer = _new_writer(unfinished, schema, is_csv=path.suffix == ".csv")

    def write(batch: pa.RecordBatch) -> None:
        with _writing(path):
            writer.write_batch(batch)

    try:
        yield write
        with _writing(path):
            writer.close()
            _sync(unfinished)
            unfinished.replace(path)
            sync_directory(path.parent)
    except BaseException:
        with suppress(pa.ArrowException, OSError):
            writer.close()
        unfinished.unlink(missing_ok=True)
        raise


def _finished_part(path: Path, name: str) -> FinishedPart:
    """Read the number of rows, and of rows without results, from a Parquet file's footer."""
    about = pq.read_metadata(path)
    rows, bad = about.num_rows, 0
    paths = [about.schema.column(at).path for at in range(len(about.schema))]
    if rows and PROBLEM in paths:
        columns = (about.row_group(at).column(paths.index(PROBLEM)) for at in range(about.num_row_groups))
        bad = rows - sum(column.statistics.null_count for column in columns)
    return FinishedPart(name, rows, bad, path.stat().st_size)


def _difference(before: object, now: object) -> str:
    """Describe the first difference of two JSON values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                return f"{name}: {_difference(before.get(name), now.get(name))}"
    if isinstance(before, list) and isinstance(now, list):
        for one, other in zip(before, now, strict=False):
            if one != other:
                return _difference(one, other)
        return f"{len(before)} entries, now {len(now)}"
    return f"{json.dumps(before)}, now {json.dumps(now)}"


def _new_writer(path: Path, schema: pa.Schema, *, is_csv: bool) -> pq.ParquetWriter | pacsv.CSVWriter:
    if is_csv:
        return pacsv.CSVWriter(path, schema)
    return pq.ParquetWriter(path, schema, compression="zstd")


def _join_parquet(parts: list[Path], whole: Path) -> None:
    with pq.ParquetFile(parts[0]) as first:
        schema = first.schema_arrow
    with pq.ParquetWriter(whole, schema, compression="zstd") as writer:
        for part in parts:
            with pq.ParquetFile(part, pre_buffer=False) as opened:
                for batch in opened.iter_batches(_JOINED_ROWS):
                    writer.write_table(pa.Table.from_batches([batch]))


def _join_csv(parts: list[Path], whole: Path) -> None:
    with whole.open("wb") as joined:
        for number, part in enumerate(parts):
            with part.open("rb") as opened:
                header = opened.readline()
                if number == 0:
                    joined.write(header)
                shutil.copyfileobj(opened, joined)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn errors of Arrow and of the file system into one line that names the output."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise BatchError(
            f'output "{path}": it cannot be written: {one_line(error)}; correct the cause'
        ) from error
