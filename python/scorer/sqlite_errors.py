"""What an error of SQLite says about its file: damaged, locked, or on a full disk."""

from __future__ import annotations

import sqlite3
from typing import Final

_PRIMARY: Final = 0xFF
"""Bits of a result code without its extension."""


def is_damage(error: BaseException) -> bool:
    """Whether an error says that the file is not a sound SQLite database."""
    return _primary(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_busy(error: BaseException) -> bool:
    """Whether an error says that another connection had the file locked for longer than the time limit."""
    return _primary(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_full(error: BaseException) -> bool:
    """Whether an error says that the disk is full."""
    return _primary(error) == sqlite3.SQLITE_FULL


def _primary(error: BaseException) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & _PRIMARY
