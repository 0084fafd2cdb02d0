"""Creating a backup of a registry, a log and a platform while they are in use."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scorer import bridge
from scorer.backup import manifest
from scorer.backup.copying import copy_database, copy_file, make_directory, sync_file, sync_tree
from scorer.durable import sync_directory
from scorer.errors import BackupError
from scorer.log import LogReader
from scorer.registry import database as registry_database
from scorer.registry import files as bundle_files

BUNDLES = "bundles"
DATABASE = "platform.sqlite"
DATA = "data"
# Entries of the data directory that the platform creates again by itself.
_INDEXES = ("decisions.sqlite", "tables.sqlite")
_REBUILT = ("uploads", *(f"{name}{suffix}" for name in _INDEXES for suffix in ("", "-wal", "-shm")))


@dataclass(frozen=True, slots=True)
class Sources:
    """The parts to back up; None leaves a part out.

    Attributes:
        registry: Directory of a registry.
        log: Directory of a decision log.
        platform: A platform's SQLite file and its data directory.
    """

    registry: Path | None = None
    log: Path | None = None
    platform: tuple[Path, Path] | None = None


def back_up(sources: Sources, target: Path) -> manifest.BackupManifest:
    """Write a backup to a new directory. The directory is created atomically.

    Args:
        sources: The parts to back up.
        target: The directory to create; it must not exist.

    Returns:
        The content of the backup's manifest.

    Raises:
        BackupError: The directory exists, there is nothing to back up, or a source cannot be read.
    """
    if sources == Sources():
        raise BackupError("there is nothing to back up; name a registry, a log or a platform")
    if target.exists():
        raise BackupError(f'"{target}" exists already; give each backup a directory of its own')
    working = target.with_name(f".{target.name}.partial")
    shutil.rmtree(working, ignore_errors=True)
    make_directory(working)
    try:
        made = _parts(sources, working)
        described = manifest.BackupManifest(
            version=1,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            scorer=bridge.__version__,
            parts=made,
        )
        (working / manifest.FILE).write_bytes(manifest.dump(described))
        sync_file(working / manifest.FILE)
        sync_tree(working)
        working.rename(target)
        sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(working, ignore_errors=True)
        raise
    return described


def _parts(sources: Sources, working: Path) -> dict[manifest.PartName, manifest.BackupPart]:
    made: dict[manifest.PartName, manifest.BackupPart] = {}
    if sources.platform is not None:
        facts = _platform(*sources.platform, working / "platform")
        made["platform"] = _describe(working / "platform", sources.platform[0], facts)
    if sources.log is not None:
        facts = _log(sources.log, working / "log")
        made["log"] = _describe(working / "log", sources.log, facts)
    # The registry is copied last: a bundle is pushed before a platform or a log names it, so every bundle
    # that the other parts name is then in the copy.
    if sources.registry is not None:
        facts = _registry(sources.registry, working / "registry")
        made["registry"] = _describe(working / "registry", sources.registry, facts)
    return made


def _describe(directory: Path, source: Path, facts: Mapping[str, Any]) -> manifest.BackupPart:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return manifest.BackupPart(
        source=str(source.absolute()),
        files={str(path.relative_to(directory)): manifest.digest(path) for path in files},
        facts=facts,
    )


def _registry(source: Path, target: Path) -> Mapping[str, Any]:
    """Copy the database before the bundles, because a bundle is stored before the database lists it."""
    copy_database(source / registry_database.FILE, target / registry_database.FILE)
    from scorer.registry import Registry

    copied = Registry(target)
    digests = [record.digest.removeprefix("sha256:") for record in copied.list()]
    for digest in digests:
        bundle, place = source / BUNDLES / digest, target / BUNDLES / digest
        for name in bundle_files.stored_names(bundle):
            copy_file(bundle / name, place / name)
    return {"bundles": len(digests), "aliases": dict(copied.aliases())}


def _platform(database: Path, data: Path, target: Path) -> Mapping[str, Any]:
    copy_database(database, target / DATABASE)
    copied = 0
    for path in sorted(data.rglob("*")) if data.is_dir() else []:
        inside = path.relative_to(data)
        if inside.parts[0] in _REBUILT or not path.is_file() or path.is_symlink():
            continue
        copy_file(path, target / DATA / inside)
        copied += 1
    return {"data_files": copied}


def _log(source: Path, target: Path) -> Mapping[str, Any]:
    """Read the log to its end to check every record, and copy its segments up to their last complete record.

    The second reader, `held`, keeps retention from removing segments until they are copied.
    """
    make_directory(target)
    held, reader = LogReader(source), LogReader(source)
    records = sum(1 for _ in reader.payloads())
    for segment in reader.segments:
        copy_file(source / segment.name, target / segment.name, length=segment.good_end)
    del held
    for mark in (source / "SHIPPED", source / "ERASED"):
        if mark.is_file():
            copy_file(mark, target / mark.name)
    last = max((segment.sequences[1] for segment in reader.segments if segment.sequences), default=0)
    errors = [finding.detail for finding in reader.findings if finding.severity == "error"]
    return {"records": records, "last_sequence": last, "damage": errors}
