"""`feed.toml`, the settings of `scorer features feed`: types, limits, defaults and descriptions."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from scorer.config.example import example as example_text
from scorer.config.features import RedisSettings
from scorer.config.fields import Directory, OptionalAddress, OptionalPath, Section, is_loopback
from scorer.config.identity import ClientTlsSettings
from scorer.config.kafka import KafkaName, KafkaOptions
from scorer.config.source import SettingsSource


class FeedSection(Section):
    """The process: its batches, its retries and its listener."""

    batch: int = Field(
        default=200,
        ge=1,
        le=1000,
        description="Largest number of events of one write. A write to Redis is one transaction, during "
        "which reads wait.",
    )
    retry_seconds: float = Field(
        default=900.0,
        ge=1,
        le=86_400,
        description="Time after which the process stops with exit code 1 if a target takes no events, "
        "seconds. Until then it tries again at intervals that double up to 30 s. Nothing is lost: a restart "
        "continues.",
    )
    metrics_listen: OptionalAddress = Field(
        default="127.0.0.1:7704",
        description='Address of /metrics and /health, HTTP without TLS. "off": none. Port 0 lets the system '
        "choose.",
    )
    metrics_allow_remote: bool = Field(
        default=False, description="Whether metrics_listen may be an address that other machines can reach."
    )

    @model_validator(mode="after")
    def _listener_is_local(self) -> Self:
        if self.metrics_listen and not self.metrics_allow_remote and not is_loopback(self.metrics_listen):
            raise ValueError(
                f'metrics_listen = "{self.metrics_listen}" can be reached from other machines; write '
                '"127.0.0.1:7704", or set metrics_allow_remote = true'
            )
        return self


class FeedKafkaSection(Section):
    """The topic with the events."""

    servers: str = Field(default="127.0.0.1:9092", description='Brokers, as "host:port,host:port".')
    topic: KafkaName = Field(default="scorer-events", description="Topic of the events.")
    group: KafkaName = Field(
        default="scorer-features",
        description="Group of consumers. Processes with the same group divide the partitions among them.",
    )
    format: Literal["protobuf", "json"] = Field(
        default="protobuf",
        description="Form of a message: an encoded `scorer.v1.Event`, or the same as JSON.",
    )
    queue_mb: int = Field(
        default=64, ge=1, le=2048, description="Largest size of messages that were fetched and wait, MB."
    )
    timeout_seconds: float = Field(
        default=30.0, ge=1, le=600, description="Time limit of one request to the brokers, seconds."
    )
    options: KafkaOptions = Field(default={})


class FeedServersSection(Section):
    """Servers whose own store takes the events, by `RecordEvents`."""

    tls: ClientTlsSettings = Field(default_factory=ClientTlsSettings)
    addresses: list[str] = Field(
        default=[],
        max_length=256,
        description="Addresses of servers. Each has its own position in the topic, as the group "
        "`GROUP.ADDRESS`, so that a server that is away does not hold up the others.",
        examples=[["127.0.0.1:7700"]],
    )
    token_file: OptionalPath = Field(
        default=None,
        validate_default=True,
        description='File with the token of a caller with the role `record_events`. "off": none.',
        examples=["feed.token"],
    )
    timeout_seconds: float = Field(
        default=10.0, ge=0.1, le=600, description="Time limit of one call, seconds."
    )


class FeedRedisSection(RedisSettings):
    """Redis or Valkey, where servers with `source = "redis"` read."""

    set: Directory | None = Field(
        default=None,
        description="File of the feature set, in its canonical JSON form.",
        examples=["card-behaviour.json"],
    )

    @model_validator(mode="after")
    def _set_belongs_to_address(self) -> Self:
        if (self.address is None) != (self.set is None):
            raise ValueError("address and set go together: set both or neither")
        return self


class FeedPrivacySection(Section):
    """The rules for stored data of events in Redis. They must be those of the servers that read it."""

    card_numbers: Literal["refuse", "mask", "off"] = Field(
        default="refuse", description="[privacy] card_numbers of the servers."
    )
    entities: Literal["clear", "hash"] = Field(
        default="clear", description="[privacy] entities of the servers."
    )
    key_file: OptionalPath = Field(
        default=None, validate_default=True, description="[privacy] key_file of the servers."
    )


class FeedSettings(Section):
    """The settings of a feed: all sections of `feed.toml`."""

    feed: FeedSection = Field(default_factory=FeedSection)
    kafka: FeedKafkaSection = Field(default_factory=FeedKafkaSection)
    servers: FeedServersSection = Field(default_factory=FeedServersSection)
    redis: FeedRedisSection = Field(default_factory=FeedRedisSection)
    privacy: FeedPrivacySection = Field(default_factory=FeedPrivacySection)

    @model_validator(mode="after")
    def _has_a_target(self) -> Self:
        if not self.servers.addresses and self.redis.address is None:
            raise ValueError("no target is set; set servers.addresses or redis.address")
        return self


def load(path: Path) -> FeedSettings:
    """Read a file.

    Raises:
        InvalidSettingsError: The settings are not valid. The error lists all problems.
    """
    return SettingsSource.read(path, example="scorer features feed-config").validate(FeedSettings)


def example() -> str:
    """Return a complete, commented `feed.toml`."""
    head = (
        "# Settings of `scorer features feed --config feed.toml`.\n"
        "# Every key has its default value; a key that is commented out shows an example.\n"
        "# Relative paths start from this file's folder. Set servers.addresses or redis.address.\n"
        "# Check this file: `scorer features feed-config feed.toml`.\n"
    )
    return example_text(FeedSettings, head)
