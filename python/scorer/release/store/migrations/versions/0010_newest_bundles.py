"""Add an index of bundles in the order of their lists.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the index."""
    columns = ["uploaded_at", "digest", "project", "kind", "name", "uploaded_by"]
    op.create_index("ix_bundles_newest", "bundles", columns)
