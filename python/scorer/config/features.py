"""Settings of computed features: the feature sets of a server, and where their state is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from scorer.config.fields import Directory, OptionalPath, OptionalTarget, Section
from scorer.config.identity import ClientTlsSettings, client_tls_config, encrypted_or_near


class RedisSettings(Section):
    """The connection to Redis or Valkey."""

    tls: ClientTlsSettings = Field(default_factory=ClientTlsSettings)
    allow_remote: bool = Field(
        default=False,
        description="Allows `address` to be another machine without TLS. Keys of entities are sent.",
    )
    address: OptionalTarget = Field(
        default=None,
        description='host:port of Redis or Valkey. "off": none.',
        examples=["127.0.0.1:6379"],
    )
    user: str = Field(
        default="", max_length=128, description='Name of the user. "": the default user of the server.'
    )
    password_file: OptionalPath = Field(
        default=None,
        validate_default=True,
        description='File with the password of the user, read for each connection. "off": no password.',
        examples=["redis.password"],
    )
    database: int = Field(default=0, ge=0, le=1_048_576, description="Number of the database.")
    prefix: str = Field(
        default="scorer:",
        pattern=r"^[!-~]{0,64}$",
        description="The beginning of every key. The feed and the servers need the same one.",
    )
    timeout_ms: int = Field(
        default=250,
        ge=10,
        le=60_000,
        description="Time without a reply after which a connection is replaced, milliseconds.",
    )

    @field_validator("address")
    @classmethod
    def _encrypted_or_near(cls, value: str | None, info: ValidationInfo) -> str | None:
        return encrypted_or_near(value, info, tls="tls", name="redis.tls")


class FeatureRedisSettings(RedisSettings):
    """The connection to Redis or Valkey, and the limits of reads. For `source = "redis"`."""

    connections: int = Field(default=2, ge=1, le=64, description="Number of connections for reads.")
    max_in_flight: int = Field(
        default=1024,
        ge=1,
        le=65_536,
        description="Largest number of reads without a reply. Further reads fail at once, and the features "
        "have their declared defaults.",
    )
    hedge_ms: int = Field(
        default=2,
        ge=0,
        le=1000,
        description="Time without a reply after which a read is repeated on another connection, "
        "milliseconds. 0: never.",
    )
    hedge_share: float = Field(
        default=0.05, ge=0, le=1, description="Largest share of reads that are repeated."
    )


class FeatureSettings(Section):
    """The features that the server computes from recorded events."""

    sets: list[Directory] = Field(
        default=[],
        max_length=64,
        description="Files of feature sets: TOML, or JSON. A bundle with computed features is "
        "loaded only if these sets have its features with the same definitions.",
        examples=[["card-behaviour.toml"]],
    )
    source: Literal["store", "redis"] = Field(
        default="store",
        description="Where the state of entities is: `store`, in this process, from recorded events; "
        "`redis`, in Redis or Valkey, where `scorer features feed` writes it.",
    )
    directory: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="Directory of the journal and the snapshots of the store. The state is rebuilt from them "
        'at the next start. "off": the state is lost when the server stops.',
        examples=["features"],
    )
    memory_mb: int = Field(
        default=512,
        ge=1,
        le=1_048_576,
        description="Largest memory of the state, MB. Beyond it, the entities whose latest event is oldest "
        "are removed and counted.",
    )
    sla_share: float = Field(
        default=0.25,
        gt=0,
        le=1,
        description="Share of the SLA that loading the features of a request may take. Later features have "
        "their declared defaults, and the answer is marked.",
    )
    redis: FeatureRedisSettings = Field(default_factory=FeatureRedisSettings)

    @model_validator(mode="after")
    def _state_belongs_to_sets(self) -> FeatureSettings:
        if self.directory is not None and not self.sets:
            raise ValueError("directory is set and sets is empty: name the feature sets, or remove directory")
        if (self.source == "redis") != (self.redis.address is not None):
            raise ValueError('source = "redis" and redis.address go together: set both or neither')
        if self.source == "redis" and self.directory is not None:
            raise ValueError('directory belongs to source = "store": remove it, or change source')
        return self


def feature_config(features: FeatureSettings, definition: Callable[[Path], Any]) -> dict[str, Any] | None:
    """Convert the settings to the configuration of the data plane; None without feature sets.

    Args:
        features: The settings.
        definition: Reads the file of a feature set, and returns its canonical form.
    """
    if not features.sets:
        return None
    redis = features.redis
    return {
        "sets": [definition(path) for path in features.sets],
        "directory": None if features.directory is None else str(features.directory),
        "memory_bytes": features.memory_mb << 20,
        "sla_share": features.sla_share,
        "redis": None
        if redis.address is None
        else redis_config(redis)
        | {
            "connections": redis.connections,
            "max_in_flight": redis.max_in_flight,
            "hedge_ms": redis.hedge_ms,
            "hedge_share": redis.hedge_share,
        },
    }


def redis_config(redis: RedisSettings) -> dict[str, Any]:
    """Convert the settings of a connection to the format of the extension."""
    return {
        "address": redis.address,
        "tls": client_tls_config(redis.tls),
        "user": redis.user,
        "password_file": None if redis.password_file is None else str(redis.password_file),
        "database": redis.database,
        "prefix": redis.prefix,
        "timeout_ms": redis.timeout_ms,
    }
