"""Add documents about bundles: explanations and the authors' texts of model cards.

Revision ID: 0012
Revises: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table of documents about bundles."""
    op.create_table(
        "bundle_evidence",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name=op.f("fk_bundle_evidence_project")),
        sa.PrimaryKeyConstraint("project", "digest", "kind", name=op.f("pk_bundle_evidence")),
    )
