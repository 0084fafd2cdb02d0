"""The files of a table in a storage, for pyarrow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import pyarrow.fs as pa_fs

_S3: Final = ("s3://", "s3a://")
_CONNECT_SECONDS: Final = 5.0
_ARGUMENTS: Final = {
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "session_token": "session_token",
    "token": "session_token",
    "region": "region",
    "default_region": "region",
    "endpoint": "endpoint_override",
    "endpoint_url": "endpoint_override",
    "virtual_hosted_style_request": "force_virtual_addressing",
}
"""Argument of pyarrow's S3 for an option of deltalake without its prefix ``aws_``."""
_OTHERS: Final = {
    "allow_http",
    "conditional_put",
    "timeout",
    "connect_timeout",
    "max_retries",
    "retry_timeout",
}
"""Options that pyarrow does not need to read."""
_DEFAULT_REGION: Final = "us-east-1"


def table_storage(uri: str, options: Mapping[str, str], timeout_seconds: float) -> pa_fs.FileSystem:
    """Return the file system whose root is a table.

    deltalake holds the interpreter's lock while it opens a file, so a storage that does not respond would
    stop every thread of the process. pyarrow's own S3 client releases the lock. It is used if it understands
    all options.

    Args:
        uri: Directory or URL of the table.
        options: The options of deltalake.
        timeout_seconds: Time limit of one request to S3.
    """
    import pyarrow.fs as pa_fs
    from deltalake.fs import DeltaStorageHandler

    arguments = _s3_arguments(options) if uri.startswith(_S3) else None
    if arguments is None:
        return pa_fs.PyFileSystem(DeltaStorageHandler(uri, dict(options) or None))
    storage = pa_fs.S3FileSystem(
        **arguments, request_timeout=timeout_seconds, connect_timeout=min(_CONNECT_SECONDS, timeout_seconds)
    )
    place = urlsplit(uri)
    return pa_fs.SubTreeFileSystem(f"{place.netloc}{place.path}".rstrip("/"), storage)


def _s3_arguments(options: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the arguments of pyarrow's S3; None if an option has no equivalent."""
    # As in deltalake, an option takes precedence over the variable of the environment.
    found: dict[str, Any] = {
        argument: os.environ[variable]
        for variable, argument in (
            ("AWS_DEFAULT_REGION", "region"),
            ("AWS_REGION", "region"),
            ("AWS_ENDPOINT_URL", "endpoint_override"),
        )
        if variable in os.environ
    }
    for name, value in options.items():
        plain = name.lower().removeprefix("aws_")
        if plain in _ARGUMENTS:
            found[_ARGUMENTS[plain]] = value
        elif plain not in _OTHERS:
            return None
    found.setdefault("region", _DEFAULT_REGION)
    if "://" in (endpoint := found.get("endpoint_override", "")):
        found["scheme"], _, found["endpoint_override"] = endpoint.rstrip("/").partition("://")
    if "force_virtual_addressing" in found:
        found["force_virtual_addressing"] = found["force_virtual_addressing"].lower() in {"true", "1", "yes"}
    return found
