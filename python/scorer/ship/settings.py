"""`ship.toml`, the settings of `scorer ship`: types, limits, defaults and descriptions.

`scorer ship config` prints a commented example that is generated from these descriptions.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from scorer.config.example import example as example_text
from scorer.config.fields import OFF, Directory, OptionalAddress, Section, is_loopback
from scorer.config.kafka import KafkaName, KafkaOptions
from scorer.config.secrets import from_environment
from scorer.config.source import SettingsSource

_SERVER = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_OFF = {"", OFF}


class ShipSection(Section):
    """The process: its log, its batches and its listener."""

    log: Directory = Field(
        default=Path("decisions"),
        validate_default=True,
        description="Directory of the decision log: [log] dir of the server. It must be on a local disk.",
    )
    server: str = Field(
        default="",
        description="Id of the server in every record that is shipped. Each server needs its own, and keeps "
        "it. Default: the name of the host.",
        examples=["scorer-0"],
    )
    flush_seconds: float = Field(
        default=2.0,
        ge=0.05,
        le=3600,
        description="Interval at which new records are delivered, seconds. Each interval with new records "
        "makes one commit per table and one file per partition, so larger values make fewer and larger "
        "files.",
    )
    flush_rows: int = Field(
        default=50_000, ge=1, le=1_000_000, description="Largest number of records of one delivery."
    )
    flush_mb: int = Field(
        default=32,
        ge=1,
        le=1024,
        description="Size at which one delivery ends, MB. The process needs about 250 MB of memory and up "
        "to ten times this size.",
    )
    retry_seconds: float = Field(
        default=900.0,
        ge=1,
        le=86_400,
        description="Time after which the process stops with exit code 1 if a sink takes no delivery, "
        "seconds. Until then it tries again at intervals that double up to 30 s. Nothing is lost: a restart "
        "continues.",
    )
    metrics_listen: OptionalAddress = Field(
        default="127.0.0.1:7703",
        description='Address of /metrics and /health, HTTP without TLS. "off": none. Port 0 lets the system '
        "choose.",
    )
    metrics_allow_remote: bool = Field(
        default=False, description="Whether metrics_listen may be an address that other machines can reach."
    )

    @field_validator("server")
    @classmethod
    def _server_is_a_name(cls, value: str) -> str:
        if value and not _SERVER.fullmatch(value):
            raise ValueError(
                f'"{value}" is not the id of a server; write up to 128 letters, digits, ".", "_" and "-"'
            )
        return value

    @model_validator(mode="after")
    def _listener_is_local(self) -> Self:
        if self.metrics_listen and not self.metrics_allow_remote and not is_loopback(self.metrics_listen):
            raise ValueError(
                f'metrics_listen = "{self.metrics_listen}" can be reached from other machines; write '
                '"127.0.0.1:7703", or set metrics_allow_remote = true'
            )
        return self

    @property
    def server_id(self) -> str:
        """Id of the server: the setting, or the name of the host."""
        return self.server or socket.gethostname()


class DeltaSection(Section):
    """Settings of the sink for Delta tables."""

    url: str = Field(
        default="off",
        description='Directory or URL (s3://bucket/path) below which the tables are. "off": no Delta table. '
        "A relative "
        "directory starts from this file's folder.",
    )
    options: dict[str, str] = Field(
        default={},
        description="Options of the object storage. Those that are not set are read from the environment "
        "(AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...). $NAME stands for an environment variable.",
        examples=[{"AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_SECRET_ACCESS_KEY": "$S3_SECRET"}],
    )
    compact_commits: int = Field(
        default=50,
        ge=2,
        le=10_000,
        description="Number of commits of a table after which its small files are merged, a checkpoint is "
        "written and files that are no longer used are removed, in a child process.",
    )
    file_mb: int = Field(
        default=64, ge=1, le=4096, description="Size of the files that compaction makes, MB."
    )
    keep_hours: int = Field(
        default=24,
        ge=0,
        le=8760,
        description="Time for which files that compaction has replaced are kept for readers of older "
        "versions, hours.",
    )
    log_days: int = Field(
        default=7,
        ge=1,
        le=3650,
        description="Time for which the table's own log of versions is kept, days.",
    )
    timeout_seconds: float = Field(
        default=20.0, ge=1, le=600, description="Time limit of one request to the object storage, seconds."
    )

    @field_validator("options", mode="before")
    @classmethod
    def _secrets(cls, value: Any) -> Any:
        return from_environment(value)

    @property
    def is_on(self) -> bool:
        """Whether the sink is configured."""
        return self.url not in _OFF


class KafkaSection(Section):
    """Settings of the sink for a Kafka topic."""

    servers: str = Field(
        default="off",
        description='Brokers, as "host:port,host:port". "off": no Kafka.',
    )
    topic: KafkaName = Field(default="scorer-decisions", description="Topic of the records.")
    positions: KafkaName = Field(
        default="scorer-decisions-positions",
        description="Compacted topic with one partition that holds the position of each server.",
    )
    create_topics: bool = Field(
        default=True, description="Whether topics that do not exist are created at the start."
    )
    partitions: int = Field(default=6, ge=1, le=10_000, description="Partitions of a topic that is created.")
    replication: int = Field(
        default=-1,
        ge=-1,
        le=100,
        description="Replicas of a topic that is created; -1: the brokers' default.",
    )
    queue_mb: int = Field(
        default=64, ge=1, le=2048, description="Largest size of the messages that wait to be sent, MB."
    )
    timeout_seconds: float = Field(
        default=30.0, ge=1, le=600, description="Time limit of one transaction, seconds."
    )
    options: KafkaOptions = Field(default={})

    @model_validator(mode="after")
    def _topics_differ(self) -> Self:
        if self.topic == self.positions:
            raise ValueError(f'topic and positions are both "{self.topic}"; name two topics')
        return self

    @property
    def is_on(self) -> bool:
        """Whether the sink is configured."""
        return self.servers not in _OFF


class ShipSettings(Section):
    """The settings of a shipper: all sections of `ship.toml`."""

    ship: ShipSection = Field(default_factory=ShipSection)
    delta: DeltaSection = Field(default_factory=DeltaSection)
    kafka: KafkaSection = Field(default_factory=KafkaSection)


def load(path: Path | None) -> ShipSettings:
    """Read a file; without one, every setting has its default.

    Raises:
        InvalidSettingsError: The settings are not valid. The error lists all problems.
    """
    if path is None:
        return ShipSettings()
    source = SettingsSource.read(path, example="scorer ship config")
    settings = source.validate(ShipSettings)
    url = settings.delta.url
    if settings.delta.is_on and "://" not in url:
        delta = settings.delta.model_copy(update={"url": str(source.base / Path(url).expanduser())})
        settings = settings.model_copy(update={"delta": delta})
    return settings


def example() -> str:
    """Return a complete, commented `ship.toml`."""
    head = (
        "# Settings of `scorer ship --config ship.toml`.\n"
        "# Every key has its default value; a key that is commented out shows an example.\n"
        "# Relative paths start from this file's folder. Check this file: `scorer ship config ship.toml`.\n"
    )
    return example_text(ShipSettings, head)
