"""Experience that stays in its Parquet files: only the columns of one value per decision are in memory.

For training on more decisions than fit in memory. Contexts and eligible actions are read in blocks, row group
by row group, as often as they are needed. A directory of files that `scorer.learn.experience_files.write`
made is one experience; its files are read in the order of their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scorer.learn.decisions import DecisionBlock
from scorer.learn.errors import DataError
from scorer.learn.experience import State, Texts, names, texts
from scorer.learn.experience_files import check_codes, files_of, matrix, read_header
from scorer.stats.arrays import Bools, Floats, Ints, Rows32

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_PAGE_BUFFER = 1 << 20
_COLUMNS = {
    "time_ms": np.int64,
    "settled_ms": np.int64,
    "action": np.int64,
    "propensity": np.float64,
    "reward": np.float64,
    "state": np.int8,
}
_SAMPLE_BYTES = 32 << 20
"""Of contexts that serve as reference data of a bundle."""
_SCAN_BYTES = 8 << 20
_TEXT_ROWS = 65_536


@dataclass(frozen=True)
class RowGroup:
    """A row group of one of the files: the unit in which rows are read, also by workers on other machines.

    Attributes:
        file: the file.
        group: position in the file.
        first: number of its first row among all rows of all files.
        rows: number of its rows.
    """

    file: Path
    group: int
    first: int
    rows: int


@dataclass(frozen=True)
class StoredFiles:
    """Files with the same catalogue and columns.

    Attributes:
        files: in order.
        groups: all row groups, in order.
        context_columns: number of the context's columns.
        actions: the catalogue's ids.
        bundles: digests of the bundles that decided.
    """

    files: tuple[Path, ...]
    groups: tuple[RowGroup, ...]
    context_columns: int
    actions: tuple[str, ...]
    bundles: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Number of rows of all files."""
        last = self.groups[-1] if self.groups else None
        return 0 if last is None else last.first + last.rows


@dataclass(frozen=True)
class StoredExperience:
    """`n` decisions of the files; see `scorer.learn.decisions.DecisionRows`.

    Attributes:
        stored: the files.
        row: `[n]` numbers of the rows among all rows of the files, ascending.
        time_ms: `[n]`.
        settled_ms: `[n]`.
        action: `[n]`.
        propensity: `[n]`.
        reward: `[n]`.
        state: `[n]`.
        eligible_count: `[n]`.
        took_eligible: `[n]`.
    """

    stored: StoredFiles
    row: Ints
    time_ms: Ints
    settled_ms: Ints
    action: Ints
    propensity: Floats
    reward: Floats
    state: npt.NDArray[np.int8]
    eligible_count: Ints
    took_eligible: Bools

    def __len__(self) -> int:
        return len(self.row)

    @property
    def actions(self) -> tuple[str, ...]:
        """The ids of the catalogue's actions."""
        return self.stored.actions

    @property
    def bundles(self) -> tuple[str, ...]:
        """Digests of the bundles that decided."""
        return self.stored.bundles

    @property
    def context_columns(self) -> int:
        """Number of the context's columns."""
        return self.stored.context_columns

    def take(self, rows: slice | npt.NDArray[Any]) -> StoredExperience:
        """Return the decisions at `rows`: a mask, ascending indices or a slice. Contexts are not read."""
        columns = {
            column.name: getattr(self, column.name)[rows]
            for column in fields(self)
            if column.name != "stored"
        }
        return replace(self, **columns)

    def settled(self) -> StoredExperience:
        """Return the decisions whose reward is known."""
        return self.take(self.state == State.SETTLED)

    def between(self, start_ms: int, end_ms: int) -> StoredExperience:
        """Return the decisions of `[start_ms, end_ms)`."""
        return self.take((self.time_ms >= start_ms) & (self.time_ms < end_ms))

    def blocks(self, most: int) -> Iterator[DecisionBlock]:
        """Yield all decisions in order, at most `most` at a time. Row groups without any are not read."""
        kinds = {"context": (np.float32, self.context_columns), "eligible": (np.bool_, len(self.actions))}
        for file, at, columns in self._read(tuple(kinds), most):
            found = {
                name: matrix(columns[name], name, width, kind, file) for name, (kind, width) in kinds.items()
            }
            yield DecisionBlock(
                found["context"],
                found["eligible"],
                self.action[at],
                self.propensity[at],
                self.reward[at],
            )

    def names(self) -> Iterator[Texts]:
        """Yield the shopper of each decision in order, or the decision's id where there is none."""
        import pyarrow as pa

        for _, _, columns in self._read(("entity", "decision_id"), _TEXT_ROWS):
            entity, decision_id = (
                texts(pa.chunked_array([columns[name]])) for name in ("entity", "decision_id")
            )
            yield names(entity, decision_id)

    def contexts(self) -> Rows32:
        """Return an evenly spaced sample of the contexts, of at most 32 MiB."""
        most = max(1024, _SAMPLE_BYTES // (4 * max(self.context_columns, 1)))
        chosen = self
        if len(self) > most:
            chosen = self.take(np.linspace(0, len(self) - 1, most).astype(np.int64))
        parts = [block.context for block in chosen.blocks(most)]
        return np.concatenate(parts) if parts else np.empty((0, self.context_columns), np.float32)

    def digest(self) -> str:
        """Return `sha256:<hex>` of the files."""
        from scorer.bundle.lineage import digest_of

        return digest_of(*self.stored.files)

    def _read(self, columns: tuple[str, ...], most: int) -> Iterator[tuple[Path, slice, dict[str, Any]]]:
        """Yield columns of consecutive decisions, as Arrow arrays, with their file and places."""
        for group in self.stored.groups:
            begin, end = np.searchsorted(self.row, (group.first, group.first + group.rows))
            if begin == end:
                continue
            with opened(group.file) as file:
                first = group.first
                for batch in file.iter_batches(most, row_groups=[group.group], columns=list(columns)):
                    following = first + len(batch)
                    stop = int(begin + np.searchsorted(self.row[begin:end], following))
                    if stop > begin:
                        if stop - begin < len(batch):
                            batch = batch.take(self.row[begin:stop] - first)  # noqa: PLW2901
                        yield group.file, slice(begin, stop), {name: batch.column(name) for name in columns}
                    begin, first = stop, following


@contextmanager
def opened(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a file so that its pages are read when they are needed, and not a row group at once.

    Raises:
        DataError: it cannot be read, at the beginning or later.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=_PAGE_BUFFER) as file:
            yield file
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"experience {path}: not a readable Parquet file ({error})") from error


def open_stored(path: Path) -> StoredExperience:
    """Open a file or a directory of files, and read the columns of one value per decision.

    Raises:
        DataError: there is no such file, a file is of another kind, its columns do not fit together, or the
            files have different catalogues or columns.
    """
    stored = _layout(files_of(path))
    if stored.rows == 0:
        raise DataError(f"experience {path}: it has no decisions; join again")
    columns: dict[str, Any] = {name: np.empty(stored.rows, kind) for name, kind in _COLUMNS.items()}
    columns |= {
        "eligible_count": np.empty(stored.rows, np.int64),
        "took_eligible": np.empty(stored.rows, np.bool_),
    }
    most = max(1, _SCAN_BYTES // (len(stored.actions) + 64))
    start = 0
    for file in stored.files:
        with opened(file) as parquet:
            for batch in parquet.iter_batches(most, columns=[*_COLUMNS, "eligible"]):
                for name, values in _columns(batch, len(stored.actions), file).items():
                    columns[name][start : start + len(batch)] = values
                start += len(batch)
    return StoredExperience(stored=stored, row=np.arange(stored.rows, dtype=np.int64), **columns)


def _layout(files: Sequence[Path]) -> StoredFiles:
    """Read the metadata of all files."""
    groups: list[RowGroup] = []
    bundles: dict[str, None] = {}
    headers = []
    start = 0
    for file in files:
        with opened(file) as parquet:
            header = read_header(parquet.schema_arrow, file)
            about = parquet.metadata
        headers.append(header)
        first = headers[0]
        if (header.actions, header.context_columns) != (first.actions, first.context_columns):
            raise DataError(
                f"experience {file}: its catalogue or its number of columns is not that of {files[0]}; "
                "join both for the same bundle"
            )
        bundles.update(dict.fromkeys(header.bundles))
        for group in range(about.num_row_groups):
            rows = about.row_group(group).num_rows
            groups.append(RowGroup(file, group, start, rows))
            start += rows
    return StoredFiles(
        tuple(files), tuple(groups), headers[0].context_columns, headers[0].actions, tuple(bundles)
    )


def _columns(batch: Any, actions: int, file: Path) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, kind in _COLUMNS.items():
        column = batch.column(name)
        if column.null_count:
            raise DataError(f"experience {file}: column {name} has {column.null_count} empty rows")
        columns[name] = column.to_numpy(zero_copy_only=False).astype(kind)
    check_codes(columns, {"action": actions}, file)
    eligible = matrix(batch.column("eligible"), "eligible", actions, np.bool_, file)
    columns["eligible_count"] = eligible.sum(axis=1)
    columns["took_eligible"] = eligible[np.arange(len(eligible)), columns["action"]]
    return columns
