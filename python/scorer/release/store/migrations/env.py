"""Alembic's entry: runs on the connection, and in the transaction, that `migrate` hands over."""

from __future__ import annotations

from alembic import context

from scorer.release.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
