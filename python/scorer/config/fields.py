"""Types of settings: addresses, paths and names, and the base class of sections."""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, ValidationInfo

OFF = "off"
"""Value of an address or path that turns the feature off."""

NAME_RULE = (
    "lower-case letters, digits, '.', '_' and '-', starting with a letter or digit, at most 64 characters"
)
NAME = r"[a-z0-9][a-z0-9._-]{0,63}"

_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def _off(value: Any) -> Any:
    return None if value == OFF else value


def _address(value: Any) -> Any:
    """Check an address ``host:port`` and normalise it; ``localhost`` becomes 127.0.0.1."""
    if value is None or not isinstance(value, str):
        return value
    host, separator, port = value.rpartition(":")
    rule = (
        f'"{value}" is not an address; write "127.0.0.1:7700" or "[::1]:7700" (port 0 lets the system choose)'
    )
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(rule)
    if host == "localhost":
        host = "127.0.0.1"
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        ip = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        raise ValueError(rule) from None
    if (ip.version == 6) != bracketed:
        raise ValueError(rule)
    return host_port(str(ip), int(port))


def _target(value: Any) -> Any:
    """Check the ``host:port`` of another server; ``localhost`` becomes 127.0.0.1, other names are kept."""
    if value is None or not isinstance(value, str):
        return value
    host, _, port = value.rpartition(":")
    if port.isascii() and port.isdigit() and 0 < int(port) <= 65535:
        is_name = _HOST.fullmatch(host) and not host.rpartition(".")[2].isdigit()
        if is_name and host != "localhost":
            return f"{host}:{int(port)}"
        with suppress(ValueError):
            return _address(value)
    raise ValueError(
        f'"{value}" is not the address of a server; write host:port, such as "10.1.2.3:7700" or '
        '"scorer-shadow:7700"'
    )


def _path(value: Any, info: ValidationInfo) -> Any:
    """Resolve a relative path against the folder of the settings file."""
    if not isinstance(value, str | Path):
        return value
    if not value or "\0" in str(value):
        raise ValueError("the path is empty; name a file or directory")
    base = (info.context or {}).get("base", Path())
    return Path(base) / Path(value).expanduser()


def host_port(host: str, port: int) -> str:
    """Return a host and a port as text; an IPv6 address is written in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """Return whether a normalised address can be reached only from this machine."""
    try:
        return ipaddress.ip_address(address.rpartition(":")[0].strip("[]")).is_loopback
    except ValueError:
        # A name can resolve to any machine.
        return False


Address = Annotated[str, BeforeValidator(_address)]
OptionalAddress = Annotated[str | None, BeforeValidator(_address), BeforeValidator(_off)]
OptionalTarget = Annotated[str | None, BeforeValidator(_target), BeforeValidator(_off)]
Directory = Annotated[Path, BeforeValidator(_path)]
OptionalPath = Annotated[Path | None, BeforeValidator(_path), BeforeValidator(_off)]
CheckpointName = Annotated[str, StringConstraints(pattern=rf"^{NAME}$")]


class Section(BaseModel):
    """Base class of the settings file's tables: immutable, without unknown keys and type conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
