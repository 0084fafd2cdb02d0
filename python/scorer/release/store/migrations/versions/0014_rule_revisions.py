"""Add the bundles that were made by editing the rules of another bundle.

Revision ID: 0014
Revises: 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table; bundles that were revised before have no row."""
    op.create_table(
        "rule_revisions",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("base", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("cases", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name=op.f("fk_rule_revisions_project")),
        sa.PrimaryKeyConstraint("project", "digest", name=op.f("pk_rule_revisions")),
    )
    op.create_index(op.f("ix_rule_revisions_project_base"), "rule_revisions", ["project", "base"])
    op.create_index(op.f("ix_rule_revisions_change"), "rule_revisions", ["change"])
