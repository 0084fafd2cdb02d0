"""TLS of the control service, with the certificates of `server.tls`. Changed files are read again."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock

import grpc

from scorer import bridge
from scorer.config.identity import TlsSettings, tls_config
from scorer.errors import ConfigError
from scorer.events import EventLog

_SUITES = ("client_ca", "certificate", "key")


class ControlTls:
    """Credentials of the control listener.

    If changed files are not valid, the previous certificates stay in use. The data plane reads the same files
    and reports the error in its metrics and events.

    Args:
        settings: The settings `server.tls`, with client certificates.
        events: Event log for replacements of the certificates.

    Raises:
        ConfigError: The files cannot be read or used.
    """

    def __init__(self, settings: TlsSettings, events: EventLog) -> None:
        self._settings = settings
        self._events = events
        self._lock = Lock()
        self._read = self._files()
        bridge.check_server_tls(json.dumps(tls_config(settings)))

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials that use the present content of the files for every new connection."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._read),
            self._next,  # type: ignore[arg-type]  # None: nothing has changed
            require_client_authentication=self._settings.client_certificates == "required",
        )

    def _next(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new certificates, or None if they have not changed. gRPC calls this per connection."""
        with self._lock:
            try:
                files = self._files()
                if files == self._read:
                    return None
                bridge.check_server_tls(json.dumps(tls_config(self._settings)))
            except (ConfigError, OSError):
                return None
            self._read = files
            self._events.info("control_tls_replaced")
            return _configuration(files)

    def _files(self) -> tuple[bytes, bytes, bytes]:
        paths = (self._settings.client_ca, self._settings.certificate, self._settings.key)
        ca, certificate, key = (_contents(path, name) for path, name in zip(paths, _SUITES, strict=True))
        return ca, certificate, key


def _contents(path: Path | None, name: str) -> bytes:
    if path is None:
        raise ConfigError(f"server.tls.{name} is not set; the control service needs it")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"server.tls.{name} {path}: {error.strerror or error}") from None


def _configuration(files: tuple[bytes, bytes, bytes]) -> grpc.ServerCertificateConfiguration:
    ca, certificate, key = files
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=ca)
