"""The first tables.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

from alembic import op

from scorer.release.store.tables import metadata
from scorer.release.store.triggers import append_only

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes every table, and the triggers that keep the audit log append-only."""
    metadata.create_all(op.get_bind())
    for statement in append_only(op.get_context().dialect.name):
        op.execute(statement)
    op.bulk_insert(metadata.tables["audit_head"], [{"id": 1, "sequence": 0, "hash": "0" * 64}])
