"""Backup of a registry, a decision log and a platform while they are in use, and restore to new directories.

A backup is a directory::

    backup.json            list of the files with their SHA-256; written last
    registry/ log/ platform/

Databases are copied with SQLite's backup interface, so a copy is one committed state. Bundles are immutable.
Finished segments of the log are copied completely, and the segment that is being written is copied up to its
last complete record.
"""

from __future__ import annotations

from scorer.backup.create import Sources, back_up
from scorer.backup.manifest import BackupManifest, BackupPart
from scorer.backup.restore import Targets, restore

__all__ = ["BackupManifest", "BackupPart", "Sources", "Targets", "back_up", "restore"]
