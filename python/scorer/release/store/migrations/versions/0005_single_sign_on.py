"""Add the subject of a user at the identity provider, and the method that opened a session.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add both columns, empty in existing rows."""
    op.add_column("users", sa.Column("subject", sa.Text(), nullable=True))
    op.create_index(op.f("ix_users_subject"), "users", ["subject"], unique=True)
    op.add_column("sessions", sa.Column("via", sa.Text(), nullable=True))
