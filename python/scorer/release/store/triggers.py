"""Triggers that keep the audit log append-only for every program that is connected."""

from __future__ import annotations

_MESSAGE = "the audit log is append-only"

_SQLITE = tuple(
    f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table} "
    f"BEGIN SELECT RAISE(ABORT, '{_MESSAGE}'); END"
    for table, event in (("audit", "UPDATE"), ("audit", "DELETE"), ("audit_head", "DELETE"))
)

_POSTGRESQL = (
    f"""
    CREATE FUNCTION audit_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION '{_MESSAGE}' USING ERRCODE = 'restrict_violation'; END $$
    """,
    "CREATE TRIGGER audit_no_change BEFORE UPDATE OR DELETE ON audit "
    "FOR EACH ROW EXECUTE FUNCTION audit_append_only()",
    "CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON audit "
    "FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only()",
    "CREATE TRIGGER audit_head_no_delete BEFORE DELETE ON audit_head "
    "FOR EACH ROW EXECUTE FUNCTION audit_append_only()",
    "CREATE TRIGGER audit_head_no_truncate BEFORE TRUNCATE ON audit_head "
    "FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only()",
)


def append_only(dialect: str) -> tuple[str, ...]:
    """Return the statements that create the triggers for a database engine."""
    return _SQLITE if dialect == "sqlite" else _POSTGRESQL
