"""Add servers and checkpoints that are added beside those of platform.toml.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add both tables, empty."""
    for name in ("added_servers", "added_checkpoints"):
        op.create_table(
            name,
            sa.Column("name", sa.Text(), nullable=False),
            sa.Column("settings", sa.Text(), nullable=False),
            sa.Column("added_by", sa.Text(), nullable=False),
            sa.Column("added_at", sa.BigInteger(), nullable=False),
            sa.PrimaryKeyConstraint("name", name=op.f(f"pk_{name}")),
        )
