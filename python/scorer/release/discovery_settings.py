"""Section `[[discovery]]` of platform.toml: servers that are found by a DNS name or in Kubernetes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from scorer.config.fields import NAME, OptionalPath, Section

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_DNS = re.compile(rf"({_LABEL}\.){{0,20}}{_LABEL}\.?:(?P<port>[0-9]{{1,5}})")
MOST = 1_000
"""Largest number of servers of one group."""


class DiscoverySettings(Section):
    """Servers that the platform finds itself. Set exactly one of `dns` and `service`."""

    name: str = Field(
        pattern=rf"^{NAME}$",
        max_length=24,
        description="Name of the group. A server that has no name of its own is called NAME-ADDRESS.",
    )
    role: Literal["live", "shadow"] = Field(default="live", description="Role of its servers.")
    dns: str | None = Field(
        default=None,
        description="DNS name with an address for each server, and the port of their control services.",
        examples=["scorer-control.internal:7701"],
    )
    service: str | None = Field(
        default=None,
        pattern=rf"^{_LABEL}/{_LABEL}$",
        description="Kubernetes service as NAMESPACE/NAME, whose EndpointSlices list the servers.",
        examples=["payments/scorer"],
    )
    port: str = Field(
        default="control",
        pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        description="Name of the service's port for control services.",
    )
    seconds: float = Field(default=5.0, ge=0.1, le=3_600, description="Interval of DNS look-ups in seconds.")
    api: str = Field(
        default="https://kubernetes.default.svc",
        pattern=r"^https?://[^/\s?#@]+$",
        description="Address of the Kubernetes API.",
    )
    token_file: OptionalPath = Field(
        default=_ACCOUNT / "token",
        description='File with the bearer token for the API. It is read for every call. "off": none.',
    )
    ca_file: OptionalPath = Field(
        default=_ACCOUNT / "ca.crt", description="Certificate authorities of the API, PEM."
    )

    @field_validator("dns")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        match = None if value is None else _DNS.fullmatch(value)
        if value is not None and (match is None or not 0 < int(match["port"]) <= 65_535):
            raise ValueError(f'"{value[:100]}" is not a DNS name with a port; write "scorer.internal:7701"')
        return value

    @model_validator(mode="after")
    def _has_one_source(self) -> DiscoverySettings:
        if (self.dns is None) == (self.service is None):
            raise ValueError(f'discovery "{self.name}": set exactly one of dns and service')
        if self.service is not None and self.api.startswith("http://") and self.token_file is not None:
            raise ValueError(
                f'discovery "{self.name}": api = "{self.api}" would send the token in clear; use https://, '
                'or set token_file = "off"'
            )
        return self

    @property
    def source(self) -> str:
        """What the group is found by, for people."""
        return f"DNS {self.dns}" if self.dns is not None else f"service {self.service}"


def as_groups(value: Any) -> Any:
    """Return the tables of the file as a tuple."""
    return tuple(value) if isinstance(value, list) else value
