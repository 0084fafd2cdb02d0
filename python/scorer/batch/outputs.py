"""Outputs of a batch run: parts that appear when they are complete, and the record of the finished parts.

The parts of a directory are `part-00000.parquet` and so on. A single file is made of parts in a directory
beside it, which are joined at the end. The record, `_run.json`, lists the finished parts, so that the run can
be continued. Readers of tables skip names that start with an underscore.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

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
        parts: The finished parts, in order.
        complete: Whether every row has been scored.
    """

    identity: Mapping[str, Any]
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
    def opened(self, identity: Mapping[str, Any]) -> Iterator[RunRecord]:
        """Lock the output and yield the record of its run, which is new or is to be continued.

        Args:
            identity: JSON values: bundle, input and settings of the run.

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
            yield self._read(identity)
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
        part = self.part(number)
        unfinished = part.with_name(f"_{part.name}.unfinished")
        with _writing(self.path):
            writer = _new_writer(unfinished, schema, is_csv=self.is_csv)

        def write(batch: pa.RecordBatch) -> None:
            with _writing(self.path):
                writer.write_batch(batch)

        try:
            yield write
            with _writing(self.path):
                writer.close()
                _sync(unfinished)
                unfinished.replace(part)
                sync_directory(self._parts)
        except BaseException:
            with suppress(pa.ArrowException, OSError):
                writer.close()
            unfinished.unlink(missing_ok=True)
            raise

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

    def _read(self, identity: Mapping[str, Any]) -> RunRecord:
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
            record = RunRecord(identity)
            self.save(record)
            return record
        except (OSError, ValueError) as error:
            raise BatchError(
                f'output "{file}": the record is not readable: {error}; remove the output'
            ) from error
        if found.get("format") != _FORMAT:
            raise BatchError(f'output "{file}": the record has an unknown format; remove the output')
        for name, value in json.loads(json.dumps(identity)).items():
            if (before := found["identity"].get(name)) != value:
                what = f"{name}: {_difference(before, value)}"
                raise BatchError(
                    f'output "{self.path}": it belongs to another run ({what}); give the same again, give '
                    f"another output, or remove {self._parts}"
                )
        record = RunRecord(identity, [FinishedPart(**part) for part in found["parts"]], found["complete"])
        for part in record.parts:
            path = self._parts / part.name
            if not path.is_file() or path.stat().st_size != part.bytes:
                raise BatchError(
                    f'output "{path}": the finished part is missing or was changed; remove {self._parts}'
                )
        return record


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
        reason = " ".join(str(error).split()).rstrip(".;")[:300]
        raise BatchError(f'output "{path}": it cannot be written: {reason}; correct the cause') from error
