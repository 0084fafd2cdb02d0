"""``scorer health``: asks a server whether it serves; for container health checks and scripts."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.errors import ConfigError, ServerError

if TYPE_CHECKING:
    from scorer.config import ServerSettings

# grpc.health.v1.HealthCheckResponse.ServingStatus. Its messages are one field each: written out here, they
# cost the serving install no package.
_STATUS = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
_METHOD = "/grpc.health.v1.Health/Check"


def health(
    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="host:port or unix:///path; without it: --config")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file whose listen address is asked.")] = None,
    service: Annotated[
        str,
        typer.Option(help="Name of a checkpoint, or `liveness`; default: the whole server."),
    ] = "",
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds to wait for the response.")] = 2.0,
) -> None:
    """Ask a server whether it serves: exit 0 if it does, 1 if not."""
    if target is None:
        if config is None:
            raise ConfigError("no server is named; give host:port, unix:///path, or --config FILE")
        from scorer.config import load

        target = target_of(load(config).server)
    status = check(target, service, timeout)
    typer.echo(f"{target}: {status}")
    if status != "SERVING":
        raise typer.Exit(1)


def target_of(server: ServerSettings) -> str:
    """Where a server with these settings can be asked from its own machine.

    Raises:
        ConfigError: Where only the running server knows its port.
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
    """The status of one service, by its name in the protocol.

    Raises:
        ServerError: When nobody answers in time, or the name is unknown there.
    """
    import grpc

    from scorer.credentials import ClientTls, channel

    name = service.encode()
    if len(name) > 127:
        raise ServerError(f"{target}: no service has a name of {len(name)} bytes; the limit is 127")
    request = b"\x0a" + bytes([len(name)]) + name if name else b""
    # For a socket gRPC would name the escaped path as authority, which HTTP/2 servers may refuse.
    options = [("grpc.default_authority", "localhost")] if target.startswith("unix:") else None
    tls = None if target.startswith("unix:") else ClientTls.from_environment()
    with channel(target, tls, options or ()) as opened:
        call = opened.unary_unary(_METHOD, request_serializer=bytes, response_deserializer=bytes)
        try:
            # Waiting for the connection: a server that is just starting answers within the time given.
            reply: bytes = call(request, timeout=timeout, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise ServerError(f"{target}: {error.details()}") from None
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise ServerError(
                    f"{target}: no answer within {timeout:g} s; is the server running?"
                ) from None
            raise ServerError(f"{target}: {error.code().name}: {error.details()}") from None
    return _STATUS.get(reply[1] if reply[:1] == b"\x08" else 0, "UNKNOWN")
