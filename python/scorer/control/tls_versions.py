"""The oldest version of TLS that gRPC's server accepts."""

from __future__ import annotations

import os

from scorer.config.identity import TlsSettings

_VARIABLE = "GRPC_SSL_CIPHER_SUITES"
_NONE_OF_TLS_1_2 = "ECDHE-PSK-CHACHA20-POLY1305"


def apply(settings: TlsSettings) -> None:
    """Have gRPC refuse TLS 1.2, unless the settings allow it.

    gRPC's Python API has no option for the version. Its cipher suites, which a variable names, are those of
    TLS 1.2 alone: a suite of pre-shared keys, of which there are none, leaves a client of TLS 1.2 nothing to
    agree on. gRPC reads the variable when it is imported, so this comes before.
    """
    if settings.knows_clients and settings.min_version == "1.3":
        os.environ[_VARIABLE] = _NONE_OF_TLS_1_2
