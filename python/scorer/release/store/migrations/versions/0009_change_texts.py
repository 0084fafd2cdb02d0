"""Add the texts that a search over change requests looks in.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_AT_ONCE = 1_000


def upgrade() -> None:
    """Add the table, and the texts of the change requests that there are."""
    texts = op.create_table(
        "change_texts",
        sa.Column("number", _NUMBER, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["number"], ["changes.number"], name=op.f("fk_change_texts_number")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_change_texts")),
    )
    columns = "number, title, id, bundle_name, bundle, description"
    query = f"SELECT {columns} FROM changes WHERE number > :last ORDER BY number LIMIT {_AT_ONCE}"  # noqa: S608
    connection, last = op.get_bind(), 0
    while found := connection.execute(sa.text(query), {"last": last}).all():
        last = found[-1].number
        rows = [
            {"number": number, "text": "\n".join((*names, description[:300])).lower()}
            for number, *names, description in found
        ]
        connection.execute(sa.insert(texts), rows)
