"""Secrets of tokens and sessions: 32 random bytes each, stored as SHA-256.

Slow password hashes protect secrets that people choose. A random value of 256 bits cannot be searched for, so
a plain SHA-256 suffices and costs only microseconds per request. The hash is looked up in an index and then
compared in constant time. The duration of the look-up could disclose only the hash, not the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

PREFIX = "scr_"
"""Prefix of every token, by which secret scanners recognise it."""


def new_token() -> str:
    """Return a new random secret for a token."""
    return PREFIX + secrets.token_urlsafe(32)


def new_cookie() -> str:
    """Return a new random secret for a browser session."""
    return secrets.token_urlsafe(32)


def new_id(kind: str) -> str:
    """Return a new public id, for example `tok_2f6b...` for kind `tok`."""
    return f"{kind}_{secrets.token_hex(8)}"


def digest(secret: str) -> str:
    """Return the digest of a secret that is stored in its place."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def matches(secret: str, stored: str) -> bool:
    """Whether `stored` is the digest of a secret. The comparison takes constant time."""
    return hmac.compare_digest(digest(secret), stored)


def csrf(cookie: str) -> str:
    """Return the CSRF token of a session, derived from its cookie, which other sites cannot read."""
    return hmac.new(cookie.encode("utf-8", "replace"), b"scorer-csrf-1", hashlib.sha256).hexdigest()
