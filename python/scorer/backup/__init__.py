"""Backs up a registry, a decision log and a platform while they are in use, and restores them elsewhere.

A backup is a directory::

    backup.json            what it holds, with the SHA-256 of every file; written last
    registry/ log/ platform/

Databases are copied by SQLite's backup interface, so a copy is one committed state. Bundles are immutable.
Of the log, finished segments are copied whole, and the one being written up to its last complete record.
"""

from __future__ import annotations

from scorer.backup.create import Sources, back_up
from scorer.backup.manifest import BackupManifest, BackupPart
from scorer.backup.restore import Targets, restore

__all__ = ["BackupManifest", "BackupPart", "Sources", "Targets", "back_up", "restore"]
