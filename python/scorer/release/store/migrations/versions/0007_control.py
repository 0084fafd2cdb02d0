"""Add the control of a rollout, reviewers and the archive to change requests.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, empty in existing rows, and an index of the audit log by time."""
    for name, kind in (
        ("paused_by", sa.Text()),
        ("paused_at", sa.BigInteger()),
        ("resumed_at", sa.BigInteger()),
        ("skipped", sa.Text()),
        ("reviewers", sa.Text()),
        ("archived_by", sa.Text()),
        ("archived_at", sa.BigInteger()),
    ):
        op.add_column("changes", sa.Column(name, kind, nullable=True))
    op.create_index(op.f("ix_audit_at"), "audit", ["at"])
