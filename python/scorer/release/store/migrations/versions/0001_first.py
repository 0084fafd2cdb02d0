"""The first revision. A new database is created from `tables.py` at the newest revision.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Do nothing: no database starts before this revision."""
