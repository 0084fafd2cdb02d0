"""Identities in the forms that the log, the registry and the release service share.

Importing this loads neither numpy nor protobuf.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SCHEME = "sha256:"
"""What every digest of a bundle or file starts with."""


def digest_text(raw: bytes) -> str:
    """Return the digest of 32 raw bytes as text, ``sha256:`` and 64 hexadecimal digits; empty for none."""
    return SCHEME + raw.hex() if raw else ""


def hex_of(digest: str) -> str:
    """Return the hexadecimal digits of a digest, with or without its scheme."""
    return digest.removeprefix(SCHEME)


def short_digest(digest: str) -> str:
    """Return the first twelve hexadecimal digits, which are enough to tell bundles apart in a list."""
    return hex_of(digest)[:12]


def file_digest(path: Path) -> str:
    """Return the digest of a file's bytes.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        return SCHEME + hashlib.file_digest(file, "sha256").hexdigest()


def decision_key(decision_id: str, *, signed: bool = False) -> int:
    """Return the 64-bit hash that lanes, outcomes and the index of decisions are joined by.

    Args:
        decision_id: The id, as in the log.
        signed: Whether the same 64 bits are returned as a signed number, for SQLite.
    """
    digest = hashlib.blake2b(decision_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=signed)


def record_key(*parts: str) -> bytes:
    """Return 16 bytes that stand for the parts of an identity, so that a set of them fits into memory."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).digest()


def eligible_actions(mask: bytes | None, count: int) -> npt.NDArray[np.bool_]:
    """Unpack a record's mask of eligible actions.

    Args:
        mask: One bit per action, the first action in the lowest bit of the first byte; without a mask every
            action is eligible.
        count: Number of actions in the catalogue.

    Returns:
        `[count]`; actions beyond the end of a short mask are not eligible.
    """
    import numpy as np

    if not mask:
        return np.ones(count, dtype=bool)
    known = min(count, 8 * len(mask))
    eligible = np.zeros(count, dtype=bool)
    eligible[:known] = np.unpackbits(np.frombuffer(mask, np.uint8), count=known, bitorder="little")
    return eligible
