"""Add standing permissions, revisions of overlays, and the revision that a rollback restores.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table of permissions and the columns that refer to it."""
    op.create_table(
        "permissions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("per_hour", sa.Integer(), nullable=False),
        sa.Column("max_shift", sa.Float(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("granted_by", sa.Text(), nullable=False),
        sa.Column("granted_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_by", sa.Text(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name=op.f("fk_permissions_project")),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name=op.f("fk_permissions_user")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_permissions")),
    )
    op.create_index(op.f("ix_permissions_project"), "permissions", ["project"], unique=False)
    op.create_index(
        op.f("ix_permissions_user_checkpoint"), "permissions", ["user", "checkpoint"], unique=False
    )
    op.add_column("changes", sa.Column("evidence", sa.Text(), nullable=True))
    op.add_column("changes", sa.Column("permission", sa.Text(), nullable=True))
    op.create_index(op.f("ix_changes_permission"), "changes", ["permission"], unique=False)
    op.create_index(op.f("ix_changes_before"), "changes", ["before"], unique=False)
    op.add_column("recorded_tables", sa.Column("restores", sa.Integer(), nullable=True))
