"""The address of the protocol of agents, and its errors before a message is read.

This module does not import the protocol's packages, which a platform without it does not have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

PATH: Final = "/api/mcp"
RESOURCE_PATH: Final = f"/.well-known/oauth-protected-resource{PATH}"
"""Metadata by which clients find the identity provider (RFC 9728)."""
_INVALID_REQUEST: Final = -32600


def rpc_refusal(
    status: int, reason: str, headers: Mapping[str, str] | None = None, *, metadata_url: str = ""
) -> Response:
    """Return an error of JSON-RPC without an id, which clients of the protocol show to their users.

    Args:
        status: HTTP status.
        reason: The reason in one line.
        headers: Further headers.
        metadata_url: Address of the metadata of the protected resource; empty: there are none.
    """
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": _INVALID_REQUEST, "message": reason}}
    fields = dict(headers or {})
    if status == 401:
        about = f', resource_metadata="{metadata_url}"' if metadata_url else ""
        fields["WWW-Authenticate"] = f'Bearer realm="scorer"{about}'
    return Response(json.dumps(body), status, fields, "application/json")
