"""Add keys that all platform processes share, and indices for the pipeline and the pages.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table of keys and four indices."""
    op.create_table(
        "shared_keys",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_shared_keys")),
    )
    op.create_index(op.f("ix_changes_state"), "changes", ["state"], unique=False)
    op.create_index(op.f("ix_changes_project_number"), "changes", ["project", "number"], unique=False)
    op.create_index(op.f("ix_outbox_channel_id"), "outbox", ["channel", "id"], unique=False)
    op.create_index(op.f("ix_outbox_ended_at"), "outbox", ["ended_at"], unique=False)
