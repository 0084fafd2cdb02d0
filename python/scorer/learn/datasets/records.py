"""Records of data sets: one JSON file each, in a directory that processes may share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from scorer.bundle.check import MANIFEST, read_manifest
from scorer.bundle.models import Feature
from scorer.durable import write_atomically
from scorer.learn.errors import DataError
from scorer.learn.findings import DataFinding
from scorer.registry.reference import check_name

Purpose = Literal["training", "evaluation", "explainer", "drift", "batch"]

MOST: Final = 10_000
"""Most records of a directory."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CountedColumn(_Part):
    """The bins of a feature, or of the label, with their numbers of rows; see `scorer.drift.binning`."""

    name: str
    edges: tuple[float, ...]
    levels: tuple[str, ...]
    seen: tuple[float, ...]
    counts: tuple[int, ...]


class DatasetRecord(_Part):
    """A data set.

    Attributes:
        name: Name of the series of data sets that are compared with each other.
        purpose: What the data set is used for.
        digest: Digest of the file, which the lineage of a bundle has as `data_digest`.
        path: Path of the file when it was recorded.
        size: Size of the file in bytes.
        rows: Number of rows.
        excluded: Number of rows that the rules leave out of training.
        features: The schema.
        begins_ms: Time of the first row in milliseconds since 1970; None without times.
        ends_ms: Time of the last row.
        positive: Number of rows with a positive label; None without labels.
        label_rate: Weighted share of positive labels of the rows that are used.
        findings: Results of the checks.
        columns: Counts of values, for the comparison with later data sets.
        added_ms: Time of the record in milliseconds since 1970.
        added_by: User who recorded it.
    """

    format: Literal[1] = 1
    name: str
    purpose: Purpose
    digest: str
    path: str
    size: int
    rows: int
    excluded: int
    features: tuple[Feature, ...]
    begins_ms: int | None = None
    ends_ms: int | None = None
    positive: int | None = None
    label_rate: float | None = None
    findings: tuple[DataFinding, ...] = ()
    columns: tuple[CountedColumn, ...] = ()
    added_ms: int
    added_by: str


@dataclass(frozen=True)
class DatasetStore:
    """The records in a directory.

    Attributes:
        directory: The directory, which is created with the first record.
    """

    directory: Path

    def add(self, record: DatasetRecord) -> DatasetRecord:
        """Store a record, or return the stored one if the same file was recorded before.

        Raises:
            DataError: The name is not allowed, there are too many records, or the file cannot be written.
        """
        check_name(record.name, "data set name")
        path = self.directory / f"{record.name}.{record.purpose}.{record.digest.removeprefix('sha256:')}.json"
        if path.exists():
            return _read(path)
        if len(self._paths()) >= MOST:
            raise DataError(
                f'data sets "{self.directory}": {MOST:,} records are the most; use another directory'
            )
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomically(path, (record.model_dump_json(indent=2) + "\n").encode())
        except OSError as error:
            raise DataError(f'data set "{path}": cannot be written ({error.strerror or error})') from error
        return record

    def records(self, name: str | None = None, purpose: Purpose | None = None) -> list[DatasetRecord]:
        """Return records, the oldest first.

        Args:
            name: Only those with this name.
            purpose: Only those with this purpose.

        Raises:
            DataError: A record cannot be read.
        """
        found = [_read(path) for path in self._paths()]
        kept = [one for one in found if name in (None, one.name) and purpose in (None, one.purpose)]
        return sorted(kept, key=lambda one: (one.added_ms, one.name, one.purpose, one.digest))

    def find(self, reference: str) -> list[DatasetRecord]:
        """Return the records of a file.

        Args:
            reference: A digest, at least 8 digits of one, or the directory of a bundle, whose lineage has it.

        Raises:
            DataError: There is no record, or the prefix stands for several files.
        """
        wanted = reference
        if (Path(reference) / MANIFEST).is_file():
            lineage = read_manifest(reference).lineage
            wanted = "" if lineage is None else lineage.data_digest
        digits = wanted.removeprefix("sha256:")
        found = [one for one in self.records() if one.digest.removeprefix("sha256:").startswith(digits)]
        if len(digits) < 8 or not found:
            raise DataError(
                f'data set "{reference}": no record in "{self.directory}" has this digest; give at least 8 '
                "digits, or record the file with `scorer datasets add`"
            )
        if len({one.digest for one in found}) > 1:
            raise DataError(f'data set "{reference}": several files have such a digest; give more digits')
        return found

    def _paths(self) -> list[Path]:
        return sorted(self.directory.glob("[!.]*.json")) if self.directory.is_dir() else []


def _read(path: Path) -> DatasetRecord:
    try:
        return DatasetRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise DataError(f'data set "{path}": not a record of this version; move the file away') from error
