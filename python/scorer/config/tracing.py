"""The settings of traces, which the server exports to an OpenTelemetry collector."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from scorer.config.fields import OptionalTarget, Section
from scorer.config.identity import ClientTlsSettings, client_tls_config, encrypted_or_near


class TracingSettings(Section):
    """Traces: which requests have spans, and the OpenTelemetry collector that receives them."""

    tls: ClientTlsSettings = Field(default_factory=ClientTlsSettings)
    allow_remote: bool = Field(
        default=False, description="Allows `endpoint` to be another machine without TLS. Spans contain ids."
    )
    endpoint: OptionalTarget = Field(
        default=None,
        description='host:port of a collector that receives OTLP over gRPC. "off": no request is traced.',
        examples=["127.0.0.1:4317"],
    )
    ratio: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Share of the requests that are traced. With `follow_callers`, of those without a "
        "`traceparent`.",
    )
    follow_callers: bool = Field(
        default=True,
        description="Whether a request with a `traceparent` is traced if its caller's trace is. If false, "
        "`ratio` decides by the trace's id.",
    )
    most_per_second: int = Field(
        default=1000,
        ge=1,
        le=1_048_576,
        description="Largest number of requests that are traced per second, whatever callers ask for.",
    )
    queue: int = Field(
        default=2048,
        ge=1,
        le=65_536,
        description="Largest number of traced requests that wait for the collector. The spans of further "
        "ones are dropped and counted.",
    )
    timeout_ms: int = Field(
        default=5000,
        ge=1,
        le=60_000,
        description="Longest time for connecting to the collector, and for its reply to one batch.",
    )
    service: str = Field(
        default="scorer", min_length=1, max_length=255, description="`service.name` of the spans."
    )

    @field_validator("endpoint")
    @classmethod
    def _is_encrypted(cls, value: str | None, info: ValidationInfo) -> str | None:
        return encrypted_or_near(value, info, tls="tls", name="tracing.tls")


def tracing_config(settings: TracingSettings, instance: str) -> dict[str, Any] | None:
    """Return the settings in the data plane's format, or None if no request is traced.

    Args:
        settings: The settings.
        instance: Name of this server among those of the service.
    """
    if settings.endpoint is None:
        return None
    return {
        **settings.model_dump(exclude={"tls", "allow_remote"}),
        "instance": instance,
        "tls": client_tls_config(settings.tls),
    }
