"""Restoring a backup to new or empty directories."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from scorer.backup import manifest
from scorer.backup.copying import copy_file, make_directory, sync_tree
from scorer.backup.create import DATA, DATABASE
from scorer.durable import sync_directory
from scorer.errors import BackupError


@dataclass(frozen=True, slots=True)
class Targets:
    """The locations to restore the parts to; None leaves a part out.

    Attributes:
        registry: Directory of the registry. It must not exist, or be empty.
        log: Directory of the log. It must not exist, or be empty.
        platform: The platform's SQLite file, which must not exist, and its data directory, which must not
            exist or be empty.
    """

    registry: Path | None = None
    log: Path | None = None
    platform: tuple[Path, Path] | None = None


def restore(backup: Path, targets: Targets) -> manifest.BackupManifest:
    """Check a backup and copy its parts to new locations.

    All files are checked before the first is copied. Each directory is created atomically.

    Args:
        backup: The backup's directory.
        targets: The locations of the parts.

    Returns:
        The content of the backup's manifest.

    Raises:
        BackupError: The backup is incomplete or altered, lacks a part, or a target is not empty.
    """
    described = manifest.read_manifest(backup)
    places: dict[manifest.PartName, Path | None] = {"registry": targets.registry, "log": targets.log}
    wanted = {name: path for name, path in places.items() if path is not None}
    chosen = list(wanted)
    if targets.platform is not None:
        chosen.append("platform")
    for name in chosen:
        if name not in described.parts:
            held = ", ".join(sorted(described.parts))
            raise BackupError(f'backup "{backup}" holds no {name}, only {held}; leave the option out')
    for path in wanted.values():
        _check_empty(path)
    if targets.platform is not None:
        database, data = targets.platform
        if database.exists():
            raise BackupError(f'"{database}" exists already; restore to where nothing is, or move it away')
        _check_empty(data)
    for name in chosen:
        manifest.check_part(backup, name, described.parts[name])
    for name, path in wanted.items():
        _restore_tree(backup / name, path, described.parts[name])
    if targets.platform is not None:
        _restore_platform(backup / "platform", *targets.platform, described.parts["platform"])
    return described


def _check_empty(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise BackupError(f'"{path}" is not empty; restore to where nothing is, or move it away')


def _restore_tree(source: Path, target: Path, part: manifest.BackupPart) -> None:
    make_directory(target.absolute().parent)
    working = target.with_name(f".{target.name}.partial")
    shutil.rmtree(working, ignore_errors=True)
    make_directory(working.absolute())
    for file in part.files:
        copy_file(source / file, working / file)
    sync_tree(working)
    if target.exists():
        target.rmdir()
    working.rename(target)
    sync_directory(target.absolute().parent)


def _restore_platform(source: Path, database: Path, data: Path, part: manifest.BackupPart) -> None:
    prefix = f"{DATA}/"
    kept = {
        file.removeprefix(prefix): stored for file, stored in part.files.items() if file.startswith(prefix)
    }
    _restore_tree(source / DATA, data, part.model_copy(update={"files": kept}))
    make_directory(database.absolute().parent)
    working = database.with_name(f".{database.name}.partial")
    working.unlink(missing_ok=True)
    copy_file(source / DATABASE, working)
    # Only the owner may read the database, as on the platform, because it contains hashes of tokens.
    working.chmod(0o600)
    working.rename(database)
    sync_directory(database.absolute().parent)
