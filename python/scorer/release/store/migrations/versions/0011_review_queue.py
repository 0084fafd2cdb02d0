"""Add the review queue: cases, their history, the outcomes to report, and the reasons of projects.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the tables, without rows."""
    op.create_table(
        "review_cases",
        sa.Column("id", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("decision_id", sa.Text(), nullable=False),
        sa.Column("server", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("bundle", sa.Text(), nullable=False),
        sa.Column("score", sa.Float(), nullable=True),
        sa.Column("amount", sa.Float(), nullable=True),
        sa.Column("codes", sa.Text(), nullable=False),
        sa.Column("answered_at", sa.BigInteger(), nullable=False),
        sa.Column("found_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("overdue", sa.Boolean(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("assignee", sa.Text(), nullable=True),
        sa.Column("decision", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("decided_by", sa.Text(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("delivery", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_review_cases")),
        sa.UniqueConstraint("checkpoint", "decision_id", name=op.f("uq_review_cases_checkpoint_decision_id")),
        sqlite_autoincrement=True,
    )
    for columns in (
        ("state", "overdue", "due_at"),
        ("project", "state", "due_at"),
        ("delivery",),
        ("ended_at",),
    ):
        op.create_index(op.f(f"ix_review_cases_{'_'.join(columns)}"), "review_cases", list(columns))
    op.create_table(
        "review_events",
        sa.Column("id", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("case", _NUMBER, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["case"], ["review_cases.id"], name=op.f("fk_review_events_case")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_review_events")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_review_events_case"), "review_events", ["case"])
    op.create_table(
        "review_outbox",
        sa.Column("id", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("case", _NUMBER, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("occurred_at", sa.BigInteger(), nullable=False),
        sa.Column("token", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["case"], ["review_cases.id"], name=op.f("fk_review_outbox_case")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_review_outbox")),
        sa.UniqueConstraint("case", "revision", name=op.f("uq_review_outbox_case_revision")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_review_outbox_state_due_at"), "review_outbox", ["state", "due_at"])
    op.create_table(
        "review_reasons",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name=op.f("fk_review_reasons_project")),
        sa.PrimaryKeyConstraint("project", "code", name=op.f("pk_review_reasons")),
    )
