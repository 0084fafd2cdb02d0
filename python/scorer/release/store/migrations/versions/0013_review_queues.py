"""Add the review queue that the rules of an answer select.

Revision ID: 0013
Revises: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; earlier cases have no queue."""
    op.add_column("review_cases", sa.Column("queue", sa.Text(), nullable=False, server_default=""))
