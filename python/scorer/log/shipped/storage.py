"""Access to the storage of shipped tables: options, addresses of transactions, and messages of errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

SCHEMA_PROPERTY: Final = "scorer.schema"
"""Property of each table that holds the version of its schema."""

PREFIX: Final = "scorer-ship/"
"""Begin of the ids of all transactions that a shipper writes."""

FINAL: Final = (
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "NoSuchBucket",
    "Permission denied",
)
"""Parts of messages of object storages and file systems that another try does not change."""

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST: Final = 400


def register(server: str, name: str) -> str:
    """Return the id of the transaction that holds one number of a server's position."""
    return f"{PREFIX}{server}/{name}"


def storage_options(url: str, options: Mapping[str, str], timeout_seconds: float) -> dict[str, str]:
    """Return the options of the object storage; none for a directory.

    Retries are short, because the caller reports failures and tries again itself.

    Args:
        url: Directory or URL of the tables.
        options: Options of the user, which take precedence.
        timeout_seconds: Time limit of one request.
    """
    if "://" not in url:
        return {}
    seconds = f"{timeout_seconds:g}s"
    own = {"timeout": seconds, "connect_timeout": "5s", "max_retries": "2", "retry_timeout": seconds}
    # A commit that must not replace another one: supported by S3 and by the servers that are compatible with
    # it.
    return own | {"aws_conditional_put": "etag"} | dict(options)


def schema_version(configuration: Mapping[str, str]) -> int | None:
    """Return the version of the schema of a table with these properties; None if no shipper made it."""
    version = configuration.get(SCHEMA_PROPERTY, "")
    return int(version) if version.isdigit() else None


def one_line(error: BaseException) -> str:
    """Return an error's message on one line of bounded length."""
    # Some messages are coloured, with an arrow before each cause.
    text = _COLOUR.sub("", str(error)).replace(" ↳", ":").replace("↳", ":")
    text = " ".join(text.removeprefix("Kernel error -> ").split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
