"""Authentication of callers of the control service, and the check of their role `operate`."""

from __future__ import annotations

from typing import Any

import grpc

from scorer.control.dataplane import DataPlane


class NotOperatorError(Exception):
    """The caller is not authenticated, or has no grant of the role `operate`."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def principal_of(plane: DataPlane, context: Any) -> str:
    """Return the principal of a call if it may operate the server.

    The data plane checks the caller, with the same certificate authorities, revocation lists, token keys and
    grants as for requests.

    Args:
        plane: The data plane.
        context: The gRPC context of the call.

    Raises:
        NotOperatorError: The caller may not operate the server.
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
