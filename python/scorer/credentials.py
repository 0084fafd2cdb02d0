"""Certificates of a client of scorer: command line, platform, SDK.

credentials = ClientTls(Path("ca.pem"), Path("checkout.pem"), Path("checkout.key"))
client = scorer.Client("scorer:7700", credentials=credentials.channel_credentials())
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorer.errors import ConfigError

if TYPE_CHECKING:
    import grpc

CA = "SCORER_TLS_CA"
CERTIFICATE = "SCORER_TLS_CERTIFICATE"
KEY = "SCORER_TLS_KEY"
SERVER_NAME = "SCORER_TLS_SERVER_NAME"


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Files that a client's connections are encrypted with.

    Attributes:
        ca: Authorities that vouch for the server, PEM.
        certificate: Certificate chain of the client, PEM; None: it presents none.
        key: Private key of the certificate, PEM.
        server_name: Name in the server's certificate; None: the host of the address.
    """

    ca: Path
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> ClientTls | None:
        """Return what SCORER_TLS_CA, _CERTIFICATE, _KEY and _SERVER_NAME name; None without SCORER_TLS_CA.

        Raises:
            ConfigError: One of certificate and key is named alone, or without an authority.
        """
        given = os.environ if environment is None else environment
        ca, certificate, key = (given.get(name) or None for name in (CA, CERTIFICATE, KEY))
        if (certificate is None) != (key is None):
            raise ConfigError(f"{CERTIFICATE} and {KEY} go together: set both or neither")
        if ca is None:
            if certificate is not None:
                raise ConfigError(f"{CERTIFICATE} is set and {CA} is not: name the server's authority")
            return None
        return cls(
            Path(ca),
            None if certificate is None else Path(certificate),
            None if key is None else Path(key),
            given.get(SERVER_NAME) or None,
        )

    @property
    def version(self) -> tuple[int, ...]:
        """A value that differs once a file has been replaced."""
        found = []
        for path in (self.ca, self.certificate, self.key):
            try:
                found.append(0 if path is None else path.stat().st_mtime_ns)
            except OSError:
                found.append(-1)
        return tuple(found)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Read the files.

        Raises:
            ConfigError: One of them cannot be read.
        """
        import grpc

        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca),
            private_key=None if self.key is None else _read(self.key),
            certificate_chain=None if self.certificate is None else _read(self.certificate),
        )

    def options(self) -> Sequence[tuple[str, Any]]:
        """Channel options that go with the credentials."""
        if self.server_name is None:
            return ()
        return (("grpc.ssl_target_name_override", self.server_name),)


def channel(address: str, tls: ClientTls | None, options: Sequence[tuple[str, Any]] = ()) -> grpc.Channel:
    """Open a channel, encrypted where `tls` is given."""
    import grpc

    if tls is None:
        return grpc.insecure_channel(address, options=[*options])
    return grpc.secure_channel(address, tls.channel_credentials(), options=[*options, *tls.options()])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}; check the path and the permissions") from None
