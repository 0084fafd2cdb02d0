"""The tables of the first release (revision 0001), from which databases of that release are upgraded."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from scorer.release.store.triggers import append_only

# SQLite assigns row numbers only in a column of exactly this type.
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def create() -> None:
    """Create every table, the empty chain and the triggers, within `Operations.context`."""
    op.create_table(
        "audit",
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("via", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("object", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("previous", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_action"), "audit", ["action"], unique=False)
    op.create_index(op.f("ix_audit_actor"), "audit", ["actor"], unique=False)
    op.create_index(op.f("ix_audit_object"), "audit", ["object"], unique=False)
    op.create_index(op.f("ix_audit_project"), "audit", ["project"], unique=False)
    op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_audit_head_single")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
    )
    op.create_table(
        "cursors",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("position", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_cursors")),
    )
    op.create_table(
        "freezes",
        sa.Column("id", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("timezone", sa.Text(), nullable=False),
        sa.Column("minutes", sa.Integer(), nullable=False),
        sa.Column("checkpoints", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_freezes")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "leader",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_leader_single")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leader")),
    )
    op.create_table(
        "member_lanes",
        sa.Column("member", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("lane_table", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("refused", sa.Integer(), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("retry_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("member", "checkpoint", name=op.f("pk_member_lanes")),
    )
    op.create_table(
        "projects",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("open_changes", sa.Integer(), nullable=False),
        sa.Column("slot_minutes_per_week", sa.Integer(), nullable=False),
        sa.Column("bundles", sa.Integer(), nullable=False),
        sa.Column("checkpoints", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_projects")),
    )
    op.create_table(
        "sampling",
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("sample", sa.Float(), nullable=False),
        sa.Column("filter", sa.Text(), nullable=False),
        sa.Column("pool", sa.Boolean(), nullable=True),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("checkpoint", name=op.f("pk_sampling")),
    )
    op.create_table(
        "users",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("admin", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("removed_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_users")),
    )
    op.create_table(
        "bundles",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("uploaded_by", sa.Text(), nullable=False),
        sa.Column("uploaded_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name=op.f("fk_bundles_project")),
        sa.PrimaryKeyConstraint("project", "digest", name=op.f("pk_bundles")),
    )
    op.create_index(op.f("ix_bundles_digest"), "bundles", ["digest"], unique=False)
    op.create_table(
        "changes",
        sa.Column("number", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=True),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("bundle", sa.Text(), nullable=False),
        sa.Column("bundle_name", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("test", sa.Text(), nullable=True),
        sa.Column("minutes", sa.Float(), nullable=False),
        sa.Column("stages", sa.Text(), nullable=False),
        sa.Column("holdout", sa.Float(), nullable=False),
        sa.Column("gates", sa.Text(), nullable=False),
        sa.Column("sample", sa.Float(), nullable=True),
        sa.Column("pool", sa.Boolean(), nullable=True),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("submitted_by", sa.Text(), nullable=True),
        sa.Column("approved_by", sa.Text(), nullable=True),
        sa.Column("approved_at", sa.BigInteger(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("authors", sa.Text(), nullable=False),
        sa.Column("mark", sa.BigInteger(), nullable=True),
        sa.Column("finish", sa.Boolean(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("retry_at", sa.BigInteger(), nullable=True),
        sa.Column("request_key", sa.Text(), nullable=True),
        sa.Column("request_hash", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name=op.f("fk_changes_project")),
        sa.ForeignKeyConstraint(["test"], ["changes.id"], name=op.f("fk_changes_test")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_changes")),
        sa.UniqueConstraint("created_by", "request_key", name=op.f("uq_changes_created_by_request_key")),
        sa.UniqueConstraint("id", name=op.f("uq_changes_id")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_changes_bundle"), "changes", ["bundle"], unique=False)
    op.create_index(op.f("ix_changes_checkpoint_state"), "changes", ["checkpoint", "state"], unique=False)
    op.create_index(op.f("ix_changes_project_state"), "changes", ["project", "state"], unique=False)
    op.create_table(
        "channels",
        sa.Column("id", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=True),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("checkpoints", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("removed_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name=op.f("fk_channels_project")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_channels")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_channels_project"), "channels", ["project"], unique=False)
    op.create_table(
        "members",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("added_by", sa.Text(), nullable=False),
        sa.Column("added_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name=op.f("fk_members_project")),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name=op.f("fk_members_user")),
        sa.PrimaryKeyConstraint("project", "user", name=op.f("pk_members")),
    )
    op.create_index(op.f("ix_members_user"), "members", ["user"], unique=False)
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=True),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("last_used_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name=op.f("fk_tokens_project")),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name=op.f("fk_tokens_user")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("hash", name=op.f("uq_tokens_hash")),
    )
    op.create_index(op.f("ix_tokens_user"), "tokens", ["user"], unique=False)
    op.create_table(
        "bookings",
        sa.Column("id", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("end", sa.BigInteger(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.CheckConstraint('"end" >= start', name=op.f("ck_bookings_order")),
        sa.ForeignKeyConstraint(["change"], ["changes.id"], name=op.f("fk_bookings_change")),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name=op.f("fk_bookings_project")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_bookings")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_bookings_change"), "bookings", ["change"], unique=False)
    op.create_index(
        op.f("ix_bookings_checkpoint_slot_start"), "bookings", ["checkpoint", "slot", "start"], unique=False
    )
    op.create_index(op.f("ix_bookings_project_start"), "bookings", ["project", "start"], unique=False)
    op.create_table(
        "change_events",
        sa.Column("id", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["change"], ["changes.id"], name=op.f("fk_change_events_change")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_change_events")),
        sa.UniqueConstraint("change", "key", name=op.f("uq_change_events_change_key")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_change_events_change"), "change_events", ["change"], unique=False)
    op.create_table(
        "change_steps",
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("began", sa.BigInteger(), nullable=True),
        sa.Column("ended", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("data", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["change"], ["changes.id"], name=op.f("fk_change_steps_change")),
        sa.PrimaryKeyConstraint("change", "state", "name", name=op.f("pk_change_steps")),
    )
    op.create_table(
        "gate_results",
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("low", sa.Float(), nullable=True),
        sa.Column("high", sa.Float(), nullable=True),
        sa.Column("threshold", sa.Float(), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("success", sa.Text(), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("dry_run", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["change"], ["changes.id"], name=op.f("fk_gate_results_change")),
        sa.PrimaryKeyConstraint("change", "phase", "position", name=op.f("pk_gate_results")),
    )
    op.create_table(
        "outbox",
        sa.Column("id", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("channel", _NUMBER, nullable=False),
        sa.Column("delivery", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("claimed_by", sa.Text(), nullable=True),
        sa.Column("claimed_until", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["channel"], ["channels.id"], name=op.f("fk_outbox_channel")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
        sa.UniqueConstraint("channel", "key", name=op.f("uq_outbox_channel_key")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_outbox_waiting",
        "outbox",
        ["due_at"],
        unique=False,
        sqlite_where=sa.text("state = 'waiting'"),
        postgresql_where=sa.text("state = 'waiting'"),
    )
    op.create_table(
        "readouts",
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["change"], ["changes.id"], name=op.f("fk_readouts_change")),
        sa.PrimaryKeyConstraint("change", name=op.f("pk_readouts")),
    )
    op.create_table(
        "recorded_tables",
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("observe", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("change", sa.Text(), nullable=True),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("alias", sa.Text(), nullable=True),
        sa.Column("alias_from", sa.Text(), nullable=True),
        sa.Column("alias_done", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["change"], ["changes.id"], name=op.f("fk_recorded_tables_change")),
        sa.PrimaryKeyConstraint("checkpoint", "revision", name=op.f("pk_recorded_tables")),
        sa.UniqueConstraint("key", name=op.f("uq_recorded_tables_key")),
    )
    op.create_index(op.f("ix_recorded_tables_change"), "recorded_tables", ["change"], unique=False)
    op.create_table(
        "sessions",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("last_seen_at", sa.BigInteger(), nullable=False),
        sa.Column("idle_until", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["token"], ["tokens.id"], name=op.f("fk_sessions_token")),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name=op.f("fk_sessions_user")),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_sessions")),
    )
    op.create_index(op.f("ix_sessions_expires_at"), "sessions", ["expires_at"], unique=False)
    op.create_index(op.f("ix_sessions_token"), "sessions", ["token"], unique=False)
    op.create_index(op.f("ix_sessions_user"), "sessions", ["user"], unique=False)
    op.create_table(
        "waivers",
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["change"], ["changes.id"], name=op.f("fk_waivers_change")),
        sa.PrimaryKeyConstraint("change", "metric", name=op.f("pk_waivers")),
    )
    first = sa.text("INSERT INTO audit_head (id, sequence, hash) VALUES (1, 0, :genesis)")
    op.execute(first.bindparams(genesis="0" * 64))
    for statement in append_only(op.get_context().dialect.name):
        op.execute(statement)
