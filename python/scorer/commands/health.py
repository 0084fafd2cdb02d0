"""``scorer health``: check whether a server is serving, for container health checks and scripts."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.errors import ConfigError, ServerError

if TYPE_CHECKING:
    from scorer.config import ServerSettings

# grpc.health.v1.HealthCheckResponse.ServingStatus. Its messages have one field each, so they are encoded here
# and the serving install does not need another package.
_STATUS = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
_METHOD = "/grpc.health.v1.Health/Check"


def health(
    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="host:port or unix:///path; default: --config.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file with the server's address.")] = None,
    service: Annotated[
        str,
        typer.Option(help="Name of a checkpoint, or `liveness`; default: the whole server."),
    ] = "",
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds to wait for the response.")] = 2.0,
) -> None:
    """Check whether a server is serving. Exit codes: 0 serving, 1 not serving."""
    if target is None:
        if config is None:
            raise ConfigError("no server is given; give host:port, unix:///path, or --config FILE")
        from scorer.config import load

        target = target_of(load(config).server)
    status = check(target, service, timeout)
    typer.echo(f"{target}: {status}")
    if status != "SERVING":
        raise typer.Exit(1)


def target_of(server: ServerSettings) -> str:
    """Return the address of a server with these settings, for calls from its machine.

    Raises:
        ConfigError: The system chooses the port.
    """
    if server.uds is not None:
        return f"unix://{server.uds}"
    host, _, port = (server.listen or "").rpartition(":")
    if port in {"", "0"}:
        raise ConfigError("server.listen has port 0, which the system chooses; name the target: host:port")
    address = ipaddress.ip_address(host.strip("[]"))
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "[::1]"
    return f"{host}:{port}"


def check(target: str, service: str = "", timeout: float = 2.0) -> str:
    """Return the serving status of a service.

    Args:
        target: Address of the server.
        service: Name of a checkpoint, or `liveness`; empty: the whole server.
        timeout: Seconds to wait for the response.

    Raises:
        ServerError: The server does not respond in time, or the service is unknown.
    """
    import grpc

    from scorer.credentials import ClientTls, channel

    name = service.encode()
    if len(name) > 127:
        raise ServerError(f"{target}: no service has a name of {len(name)} bytes; the limit is 127")
    request = b"\x0a" + bytes([len(name)]) + name if name else b""
    # For a Unix socket, gRPC uses the escaped path as authority, which HTTP/2 servers may reject.
    options = [("grpc.default_authority", "localhost")] if target.startswith("unix:") else None
    tls = None if target.startswith("unix:") else ClientTls.from_environment()
    with channel(target, tls, options or ()) as opened:
        call = opened.unary_unary(_METHOD, request_serializer=bytes, response_deserializer=bytes)
        try:
            # The call waits for the connection, so that a server that is starting can still respond in time.
            reply: bytes = call(request, timeout=timeout, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise ServerError(f"{target}: {error.details()}") from None
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise ServerError(
                    f"{target}: no response within {timeout:g} s; is the server running?"
                ) from None
            raise ServerError(f"{target}: {error.code().name}: {error.details()}") from None
    return _STATUS.get(reply[1] if reply[:1] == b"\x08" else 0, "UNKNOWN")
