"""Setting the oldest version of TLS that gRPC's server accepts."""

from __future__ import annotations

import os

from scorer.config.identity import TlsSettings

_VARIABLE = "GRPC_SSL_CIPHER_SUITES"
_NONE_OF_TLS_1_2 = "ECDHE-PSK-CHACHA20-POLY1305"


def apply(settings: TlsSettings) -> None:
    """Make gRPC's server reject TLS 1.2 unless the settings allow it.

    gRPC's Python API has no option for the version of TLS. Its cipher suites can be set by an environment
    variable, which affects TLS 1.2 only. This function sets a suite of pre-shared keys. The server has no
    such keys, so a handshake with TLS 1.2 fails. gRPC reads the variable when it is imported, so this
    function must be called before.

    Args:
        settings: The settings `server.tls`.
    """
    if settings.knows_clients and settings.min_version == "1.3":
        os.environ[_VARIABLE] = _NONE_OF_TLS_1_2
