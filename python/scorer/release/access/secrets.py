"""Secrets: made of 32 random bytes each, kept as SHA-256.

A slow password hash is for secrets that people choose. Nobody searches 2^256 values, so a plain SHA-256
gives nothing away, and costs microseconds with every request. The hash is looked up in an index and compared
once more in constant time; a look-up's time could only tell of a *hash*, whose beginning nobody can choose.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

PREFIX = "scr_"
"""What every token begins with: secret scanners find it by that."""


def new_token() -> str:
    """Return a new random secret for a token."""
    return PREFIX + secrets.token_urlsafe(32)


def new_cookie() -> str:
    """Return a new random secret for a browser session."""
    return secrets.token_urlsafe(32)


def new_id(kind: str) -> str:
    """A public name, such as `tok_2f6b...`."""
    return f"{kind}_{secrets.token_hex(8)}"


def digest(secret: str) -> str:
    """What is stored of it."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def matches(secret: str, stored: str) -> bool:
    """Whether `stored` is its digest, in constant time."""
    return hmac.compare_digest(digest(secret), stored)


def csrf(cookie: str) -> str:
    """What the forms of a session carry: from its cookie, which other sites cannot read; stored nowhere."""
    return hmac.new(cookie.encode("utf-8", "replace"), b"scorer-csrf-1", hashlib.sha256).hexdigest()
