"""Rename the states `auditing` and `read-out` to `observing` and `report`.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_NAMES = {"auditing": "observing", "read-out": "report"}
_COLUMNS = (
    ("changes", "state"),
    ("change_events", "state"),
    ("change_steps", "state"),
    ("gate_results", "phase"),
)


def upgrade() -> None:
    """Rename the states in every column that stores a state or a phase."""
    for table, column in _COLUMNS:
        there = sa.table(table, sa.column(column, sa.Text()))
        for old, new in _NAMES.items():
            op.execute(sa.update(there).where(there.c[column] == old).values({column: new}))
