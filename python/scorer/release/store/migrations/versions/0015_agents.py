"""Add the tools that agents may use in a project, and the agent that drafted a change request.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. No tool is allowed in existing projects, and no agent drafted existing changes."""
    op.add_column("projects", sa.Column("agent_tools", sa.Text()))
    op.add_column("changes", sa.Column("agent", sa.Text()))
