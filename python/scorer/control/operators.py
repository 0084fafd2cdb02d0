"""Who calls the control service, and whether that principal may operate the server."""

from __future__ import annotations

from typing import Any

import grpc

from scorer.control.dataplane import DataPlane


class NotOperatorError(Exception):
    """The caller is not known, or has no grant of the role `operate`."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def principal_of(plane: DataPlane, context: Any) -> str:
    """Return the principal of a call, which may operate the server.

    The data plane decides: by the same authorities, revocation lists, token keys and grants as for requests.

    Raises:
        NotOperatorError: It may not.
    """
    shown = context.auth_context()
    pem = b"".join(shown.get("x509_pem_cert_chain") or shown.get("x509_pem_cert") or ())
    found = plane.operator(pem, _token(context))
    if "principal" in found:
        return found["principal"]
    raise NotOperatorError(grpc.StatusCode[found["code"]], found["error"])


def _token(context: Any) -> str | None:
    values = [str(value) for key, value in context.invocation_metadata() or () if key == "authorization"]
    if not values:
        return None
    scheme, _, token = values[0].partition(" ")
    if len(values) > 1 or scheme.lower() != "bearer":
        raise NotOperatorError(
            grpc.StatusCode.UNAUTHENTICATED, 'authorization is not one header of "Bearer <token>"'
        )
    return token
