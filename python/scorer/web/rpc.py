"""The address of the protocol of agents, and its errors before a message is read.

This module does not import the protocol's packages, which a platform without it does not have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

PATH: Final = "/api/mcp"
_INVALID_REQUEST: Final = -32600


def rpc_refusal(status: int, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error of JSON-RPC without an id, which clients of the protocol show to their users.

    Args:
        status: HTTP status.
        reason: The reason in one line.
        headers: Further headers.
    """
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": _INVALID_REQUEST, "message": reason}}
    fields = dict(headers or {})
    if status == 401:
        fields["WWW-Authenticate"] = 'Bearer realm="scorer"'
    return Response(json.dumps(body), status, fields, "application/json")
