"""Secret keys that every platform process on one database uses."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from sqlalchemy import insert, select

from scorer.release.store.tables import shared_keys
from scorer.release.store.values import utcnow

if TYPE_CHECKING:
    from scorer.release.store import Store


def shared_key(store: Store, name: str) -> bytes:
    """Return the key of that name, made by the first process that asks for it.

    Args:
        store: The database that the processes share.
        name: What the key is for, for instance `forms`.

    Returns:
        32 random bytes, the same in every process and after every restart.
    """
    query = select(shared_keys.c.secret).where(shared_keys.c.name == name)
    with store.read() as connection:
        found = connection.scalar(query)
    if found is None:
        with store.write() as connection:
            # Another process may have been first since the read.
            found = connection.scalar(query)
            if found is None:
                found = secrets.token_hex(32)
                connection.execute(insert(shared_keys).values(name=name, secret=found, created_at=utcnow()))
    return bytes.fromhex(found)
