"""Every table of the platform. A new database is created from these; `migrations/` upgrades older ones.

Times are `Instant` (aware in, aware out), enums are `EnumMember`, lists are `Many`, other JSON is `Json`,
text is `Words`. A test compares an upgraded database with a new one.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from scorer.release.model import (
    BuildState,
    CaseDecision,
    CaseDelivery,
    CaseState,
    ChangeKind,
    ChangeState,
    GateSpec,
    LaneSpec,
    Outcome,
    Role,
    Severity,
    Stage,
)
from scorer.release.store.values import EnumMember, Instant, Json, Many, Words

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite generates row numbers only for a column of exactly this type.
_Number = BigInteger().with_variant(Integer(), "sqlite")


def _number() -> Column[int]:
    return Column("id", _Number, primary_key=True, autoincrement=True)


# === users, projects, tokens and sessions ===

users = Table(
    "users",
    metadata,
    Column("name", Words, primary_key=True),
    Column("admin", Boolean, nullable=False, default=False),
    Column("created_at", Instant, nullable=False),
    Column("removed_at", Instant),
    Column("subject", Text),  # issuer and subject at the identity provider
    Index(None, "subject", unique=True),
)

projects = Table(
    "projects",
    metadata,
    Column("name", Words, primary_key=True),
    Column("title", Words, nullable=False),
    Column("open_changes", Integer, nullable=False),
    Column("slot_minutes_per_week", Integer, nullable=False),
    Column("bundles", Integer, nullable=False),
    Column("checkpoints", Many, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("agent_tools", Many),  # tools that agents may use; NULL: none
)

members = Table(
    "members",
    metadata,
    Column("project", ForeignKey("projects.name"), primary_key=True),
    Column("user", ForeignKey("users.name"), primary_key=True, index=True),
    Column("role", EnumMember(Role), nullable=False),
    Column("added_by", Words, nullable=False),
    Column("added_at", Instant, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Words, primary_key=True),
    Column("hash", Text, nullable=False, unique=True),
    Column("user", ForeignKey("users.name"), nullable=False, index=True),
    Column("label", Words, nullable=False),
    Column("project", ForeignKey("projects.name")),
    Column("role", EnumMember(Role), nullable=False),
    Column("created_by", Words, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("expires_at", Instant),
    Column("last_used_at", Instant),
    Column("revoked_at", Instant),
)

sessions = Table(
    "sessions",
    metadata,
    Column("hash", Text, primary_key=True),
    Column("user", ForeignKey("users.name"), nullable=False, index=True),
    # NULL: a trusted proxy or the identity provider authenticated the user
    Column("token", ForeignKey("tokens.id"), index=True),
    Column("created_at", Instant, nullable=False),
    Column("last_seen_at", Instant, nullable=False),
    Column("idle_until", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False, index=True),
    Column("via", Text),  # `oidc`; NULL: opened with a token or by a trusted proxy
)

# === servers and checkpoints beside those of platform.toml ===

added_servers = Table(
    "added_servers",
    metadata,
    Column("name", Words, primary_key=True),
    Column("settings", Json, nullable=False),  # as a [[fleet]] entry of platform.toml
    Column("added_by", Words, nullable=False),
    Column("added_at", Instant, nullable=False),
)

added_checkpoints = Table(
    "added_checkpoints",
    metadata,
    Column("name", Words, primary_key=True),
    Column("settings", Json, nullable=False),  # as a [checkpoints] table of platform.toml
    Column("added_by", Words, nullable=False),
    Column("added_at", Instant, nullable=False),
)

# === bundles and changes ===

bundles = Table(
    "bundles",
    metadata,
    Column("project", ForeignKey("projects.name"), primary_key=True),
    Column("digest", Words, primary_key=True, index=True),
    Column("name", Words, nullable=False),
    Column("kind", Words, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("uploaded_by", Words, nullable=False),
    Column("uploaded_at", Instant, nullable=False),
    # The order of lists, and what they are filtered by: rows that do not match are not read.
    Index("ix_bundles_newest", "uploaded_at", "digest", "project", "kind", "name", "uploaded_by"),
)

bundle_evidence = Table(  # documents about a bundle that are not part of it; the newest of each kind
    "bundle_evidence",
    metadata,
    Column("project", ForeignKey("projects.name"), primary_key=True),
    Column("digest", Words, primary_key=True),
    Column("kind", Words, primary_key=True),  # `explanation` or `card`
    Column("document", Json, nullable=False),
    Column("by", Words, nullable=False),
    Column("at", Instant, nullable=False),
)

rule_revisions = Table(  # bundles that were made by editing the rules of another one
    "rule_revisions",
    metadata,
    Column("project", ForeignKey("projects.name"), primary_key=True),
    Column("digest", Words, primary_key=True),
    Column("base", Words, nullable=False),  # digest of the bundle whose rules were edited
    Column("checkpoint", Words, nullable=False),
    Column("change", Words, nullable=False),  # change request that was opened for it
    Column("note", Words, nullable=False),
    Column("cases", Words, nullable=False),  # the author's cases as TOML; may be empty
    Column("by", Words, nullable=False),
    Column("at", Instant, nullable=False),
    Index(None, "project", "base"),
    Index(None, "change"),
)

builds = Table(  # builds of bundles from model files
    "builds",
    metadata,
    Column("id", Words, primary_key=True),
    Column("project", ForeignKey("projects.name"), nullable=False),
    Column("name", Words, nullable=False),  # of the bundle
    Column("version", Words, nullable=False),
    Column("checkpoint", Words, nullable=False),  # whose live bundle is copied from; empty: none
    Column("state", EnumMember(BuildState), nullable=False, index=True),
    Column("step", Words, nullable=False),
    Column("files", Json, nullable=False),  # name, bytes and digest of each file
    Column("digest", Words),
    Column("error", Words, nullable=False),
    Column("notes", Json, nullable=False),
    Column("starts", Integer, nullable=False),  # how often its process was started
    Column("created_by", Words, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("seen_at", Instant, nullable=False),  # when a process that has its files last looked
    Column("ended_at", Instant),
    Index(None, "project", "created_at"),
)

changes = Table(
    "changes",
    metadata,
    Column("number", _Number, primary_key=True, autoincrement=True),
    Column("id", Words, unique=True),  # cr-<number>, set in the transaction that inserts the row
    Column("project", ForeignKey("projects.name"), nullable=False),
    Column("kind", EnumMember(ChangeKind), nullable=False),
    Column("checkpoint", Words, nullable=False),
    Column("bundle", Words, nullable=False),
    Column("bundle_name", Words, nullable=False),
    Column("title", Words, nullable=False),
    Column("description", Words, nullable=False, default=""),
    Column("state", EnumMember(ChangeState), nullable=False),
    Column("step", Words, nullable=False, default=""),
    Column("since", Instant),
    Column("verdict", EnumMember(Outcome)),
    Column("note", Words, nullable=False, default=""),
    Column("test", ForeignKey("changes.id")),
    Column("minutes", Float, nullable=False),
    Column("stages", Many(Stage), nullable=False),
    Column("holdout", Float, nullable=False, default=0.0),
    Column("gates", Many(GateSpec), nullable=False),
    Column("sample", Float),
    Column("pool", Boolean),
    Column("before", Words),
    Column("created_by", Words, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("submitted_by", Words),
    Column("approved_by", Words),
    Column("approved_at", Instant),
    Column("version", Integer, nullable=False),
    Column("authors", Json, nullable=False),  # users who drafted, edited or submitted it
    Column("mark", Instant),  # start of the present step's time measurement
    Column("finish", Boolean, nullable=False, default=False),  # the end of its observation was requested
    Column("failures", Integer, nullable=False, default=0),  # consecutive failures of the runner
    Column("retry_at", Instant),
    Column("request_key", Words),  # idempotency key of the drafting request; `request_hash`: its content
    Column("request_hash", Text),
    Column("evidence", Json),  # evidence of a learning loop
    Column("permission", Words, index=True),  # the standing permission that it was submitted under
    Column("agent", Words),  # the agent that drafted it
    Column("paused_by", Words),  # who holds the present stage; `platform`: the stage's own pause
    Column("paused_at", Instant),
    Column("resumed_at", Instant),  # end of the last pause of the present stage
    Column("skipped", Many),  # steps (`canary 2`) that the release leaves out
    Column("reviewers", Many),  # users who were asked for a review
    Column("archived_by", Words),
    Column("archived_at", Instant),  # ended and hidden from lists since then
    UniqueConstraint("created_by", "request_key"),
    Index(None, "project", "state"),
    Index(None, "project", "number"),
    Index(None, "checkpoint", "state"),
    Index(None, "state"),
    Index(None, "bundle"),
    Index(None, "before"),
    sqlite_autoincrement=True,
)

change_texts = Table(  # what a search looks in: short, lower case, and apart from the other columns
    "change_texts",
    metadata,
    Column("number", ForeignKey("changes.number"), primary_key=True),
    Column("text", Words, nullable=False),
)

change_events = Table(
    "change_events",
    metadata,
    _number(),
    Column("change", ForeignKey("changes.id"), nullable=False, index=True),
    Column("at", Instant, nullable=False),
    Column("actor", Words, nullable=False),
    Column("state", EnumMember(ChangeState), nullable=False),
    Column("step", Words, nullable=False),
    Column("severity", EnumMember(Severity), nullable=False),
    Column("message", Words, nullable=False),
    Column("details", Json, nullable=False),
    Column("key", Words),  # unique per change: a repeated step writes one event
    UniqueConstraint("change", "key"),
    sqlite_autoincrement=True,
)

change_steps = Table(
    "change_steps",
    metadata,
    Column("change", ForeignKey("changes.id"), primary_key=True),
    Column("state", EnumMember(ChangeState), primary_key=True),
    Column("name", Words, primary_key=True),
    Column("position", Integer, nullable=False, default=0),
    Column("status", Words, nullable=False),
    Column("words", Words, nullable=False, default=""),
    Column("began", Instant),
    Column("ended", Instant),
    Column("attempts", Integer, nullable=False, default=0),
    Column("data", Json),
)

gate_results = Table(
    "gate_results",
    metadata,
    Column("change", ForeignKey("changes.id"), primary_key=True),
    Column("phase", Words, primary_key=True),  # `report`, `canary 1`, ...
    Column("position", Integer, primary_key=True),
    Column("at", Instant, nullable=False),
    Column("metric", Words, nullable=False),
    Column("outcome", EnumMember(Outcome), nullable=False),
    Column("value", Float),
    Column("low", Float),
    Column("high", Float),
    Column("threshold", Float),
    Column("rows", BigInteger, nullable=False),
    Column("success", Words, nullable=False),
    Column("words", Words, nullable=False),
    Column("dry_run", Boolean, nullable=False, default=False),
)

waivers = Table(
    "waivers",
    metadata,
    Column("change", ForeignKey("changes.id"), primary_key=True),
    Column("metric", Words, primary_key=True),
    Column("user", Words, nullable=False),
    Column("reason", Words, nullable=False),
    Column("at", Instant, nullable=False),
)

readouts = Table(
    "readouts",
    metadata,
    Column("change", ForeignKey("changes.id"), primary_key=True),
    Column("at", Instant, nullable=False),
    Column("verdict", EnumMember(Outcome), nullable=False),
    Column("document", Json, nullable=False),
)

# === calendar ===

bookings = Table(
    "bookings",
    metadata,
    _number(),
    Column("change", ForeignKey("changes.id"), nullable=False, index=True),
    Column("project", ForeignKey("projects.name"), nullable=False),
    Column("user", Words, nullable=False),
    Column("kind", EnumMember(ChangeKind), nullable=False),
    Column("checkpoint", Words, nullable=False),
    Column("slot", Integer, nullable=False),
    Column("start", Instant, nullable=False),
    Column("end", Instant, nullable=False),
    Column("active", Boolean, nullable=False, default=True),
    Index(None, "checkpoint", "slot", "start"),
    Index(None, "project", "start"),
    CheckConstraint('"end" >= start', name="order"),
    sqlite_autoincrement=True,
)

freezes = Table(
    "freezes",
    metadata,
    _number(),
    Column("name", Words, nullable=False),
    Column("kind", Words, nullable=False),
    Column("cron", Words, nullable=False),
    Column("timezone", Words, nullable=False),
    Column("minutes", Integer, nullable=False),
    Column("checkpoints", Many, nullable=False),
    Column("reason", Words, nullable=False),
    Column("created_by", Words, nullable=False),
    Column("created_at", Instant, nullable=False),
    sqlite_autoincrement=True,
)

# === lanes ===

recorded_tables = Table(
    "recorded_tables",
    metadata,
    Column("checkpoint", Words, primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("answer", Many(LaneSpec), nullable=False),
    Column("observe", Many(LaneSpec), nullable=False),
    Column("at", Instant, nullable=False),
    Column("actor", Words, nullable=False),
    Column("cause", Words, nullable=False),
    Column("change", ForeignKey("changes.id"), index=True),
    Column("key", Words, unique=True),  # unique: a repeated step records one table
    Column("alias", Words),  # digest that the registry's alias is moved to, once
    Column("alias_from", Words),  # digest that it must point to before the move; NULL: any
    Column("alias_done", Boolean, nullable=False, default=True),
    Column("restores", Integer),  # of a rollback: the revision whose answer lanes it restores
)

permissions = Table(  # standing permissions
    "permissions",
    metadata,
    Column("id", Words, primary_key=True),
    Column("project", ForeignKey("projects.name"), nullable=False, index=True),
    Column("checkpoint", Words, nullable=False),
    Column("kind", EnumMember(ChangeKind), nullable=False),
    Column("user", ForeignKey("users.name"), nullable=False),
    Column("per_hour", Integer, nullable=False),
    Column("max_shift", Float, nullable=False),  # log-odds
    Column("reason", Words, nullable=False),
    Column("granted_by", Words, nullable=False),
    Column("granted_at", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False),
    Column("revoked_by", Words),
    Column("revoked_at", Instant),
    Index(None, "user", "checkpoint"),
)

member_lanes = Table(  # last known recorded table of each server
    "member_lanes",
    metadata,
    Column("member", Words, primary_key=True),
    Column("checkpoint", Words, primary_key=True),
    Column("revision", Integer, nullable=False),
    Column("lane_table", BigInteger, nullable=False),  # version of the server's lane table at that time
    Column("error", Words, nullable=False, default=""),  # error of the latest rejected table
    Column("refused", Integer),  # revision of the latest rejected table
    Column("failures", Integer, nullable=False, default=0),
    Column("retry_at", Instant),
)

sampling = Table(
    "sampling",
    metadata,
    Column("checkpoint", Words, primary_key=True),
    Column("sample", Float, nullable=False),
    Column("filter", Words, nullable=False),
    Column("pool", Boolean),
    Column("user", Words, nullable=False),
    Column("at", Instant, nullable=False),
)

cursors = Table(  # positions up to which logs have been read (`readout:<server>`, ...)
    "cursors",
    metadata,
    Column("name", Words, primary_key=True),
    Column("position", Json, nullable=False),
    Column("at", Instant, nullable=False),
)

# === review queue ===

review_cases = Table(
    "review_cases",
    metadata,
    _number(),
    # No foreign key: the settings can name a project before it exists.
    Column("project", Words, nullable=False),
    Column("checkpoint", Words, nullable=False),
    Column("decision_id", Words, nullable=False),
    Column("server", Words, nullable=False),  # whose log the decision was found in first
    Column("sequence", BigInteger, nullable=False),  # of the record in that log
    Column("lane", Words, nullable=False),
    Column("bundle", Words, nullable=False),
    Column("score", Float),
    Column("amount", Float),
    Column("codes", Many, nullable=False),  # of rules and features, as the answer has them
    Column("queue", Words, nullable=False, server_default=""),  # that the answer's rules select
    Column("answered_at", Instant, nullable=False),  # time of the decision
    Column("found_at", Instant, nullable=False),
    Column("due_at", Instant, nullable=False),
    Column("overdue", Boolean, nullable=False),  # it was reported as overdue
    Column("state", EnumMember(CaseState), nullable=False),
    Column("assignee", Words),
    Column("decision", EnumMember(CaseDecision)),  # of the reviewer
    Column("reason", Words),
    Column("notes", Words, nullable=False),
    Column("decided_by", Words),
    Column("ended_at", Instant),
    Column("delivery", EnumMember(CaseDelivery), nullable=False),
    Column("revision", Integer, nullable=False),  # of the outcome
    Column("version", Integer, nullable=False),
    UniqueConstraint("checkpoint", "decision_id"),
    Index(None, "state", "overdue", "due_at"),
    Index(None, "project", "state", "due_at"),
    Index(None, "delivery"),
    Index(None, "ended_at"),
    sqlite_autoincrement=True,
)

review_events = Table(
    "review_events",
    metadata,
    _number(),
    Column("case", ForeignKey("review_cases.id"), nullable=False, index=True),
    Column("at", Instant, nullable=False),
    Column("actor", Words, nullable=False),
    Column("action", Words, nullable=False),
    Column("details", Json, nullable=False),
    sqlite_autoincrement=True,
)

review_outbox = Table(  # outcomes of reviews, until a server has recorded them
    "review_outbox",
    metadata,
    _number(),
    Column("case", ForeignKey("review_cases.id"), nullable=False),
    Column("kind", Words, nullable=False),
    Column("value", Float, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("occurred_at", Instant, nullable=False),
    Column("token", Text),  # decision token in base64; NULL: the reviewer's program sent none
    Column("state", Words, nullable=False),  # `waiting`, `delivered` or `replaced` by a correction
    Column("attempts", Integer, nullable=False),
    Column("due_at", Instant, nullable=False),
    Column("error", Words, nullable=False),
    UniqueConstraint("case", "revision"),
    Index(None, "state", "due_at"),
    sqlite_autoincrement=True,
)

review_reasons = Table(  # reasons that a project has declared
    "review_reasons",
    metadata,
    Column("project", ForeignKey("projects.name"), primary_key=True),
    Column("code", Words, primary_key=True),
    Column("position", Integer, nullable=False),
    Column("text", Words, nullable=False),
    Column("decision", EnumMember(CaseDecision)),
)

# === notifications ===

channels = Table(
    "channels",
    metadata,
    _number(),
    Column("project", ForeignKey("projects.name"), nullable=False, index=True),
    Column("kind", Words, nullable=False),
    Column("url", Words, nullable=False),
    Column("secret", Words),
    Column("severity", EnumMember(Severity), nullable=False),
    Column("checkpoints", Many, nullable=False),
    Column("created_by", Words, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("removed_at", Instant),  # the row is kept for its deliveries, without the address
    sqlite_autoincrement=True,
)

outbox = Table(
    "outbox",
    metadata,
    _number(),
    Column("channel", ForeignKey("channels.id"), nullable=False),
    Column("delivery", Text, nullable=False),  # unique id of the delivery, the same for every attempt
    Column("at", Instant, nullable=False),
    Column("severity", EnumMember(Severity), nullable=False),
    Column("subject", Words, nullable=False),
    Column("body", Words, nullable=False),
    Column("checkpoint", Words, nullable=False),
    Column("payload", Json, nullable=False),
    Column("key", Words),
    Column("state", Words, nullable=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column("due_at", Instant, nullable=False),
    Column("claimed_by", Words),
    Column("claimed_until", Instant),
    Column("ended_at", Instant),
    Column("error", Words, nullable=False, default=""),
    Index(
        "ix_outbox_waiting",
        "due_at",
        sqlite_where=text("state = 'waiting'"),
        postgresql_where=text("state = 'waiting'"),
    ),
    UniqueConstraint("channel", "key"),
    Index(None, "channel", "id"),
    Index(None, "ended_at"),
    sqlite_autoincrement=True,
)

# === audit log, leader and keys ===

audit = Table(  # triggers reject UPDATE and DELETE
    "audit",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False, index=True),  # as hashed: plain microseconds
    Column("actor", Words, nullable=False, index=True),
    Column("via", Words, nullable=False),
    Column("action", Words, nullable=False, index=True),
    Column("object", Words, nullable=False, index=True),
    Column("project", Words, nullable=False, index=True),
    Column("details", Text, nullable=False),  # as hashed: canonical JSON
    Column("previous", Text, nullable=False),
    Column("hash", Text, nullable=False),
)

GENESIS = "0" * 64
"""The hash before the first entry of the audit log."""

audit_head = Table(  # one row, updated by every append; triggers reject DELETE
    "audit_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("sequence", BigInteger, nullable=False),
    Column("hash", Text, nullable=False),
    CheckConstraint("id = 1", name="single"),
)

leader = Table(  # one row: the lease of the leading platform process
    "leader",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("holder", Words, nullable=False),
    Column("since", Instant, nullable=False),
    Column("until", Instant, nullable=False),
    CheckConstraint("id = 1", name="single"),
)

shared_keys = Table(  # secret keys that all platform processes share
    "shared_keys",
    metadata,
    Column("name", Words, primary_key=True),
    Column("secret", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
)
