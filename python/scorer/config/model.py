"""The settings of a server, with types, limits, defaults and descriptions.

`scorer config example` generates the commented example file from these descriptions.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from scorer.config.features import FeatureSettings
from scorer.config.fields import (
    NAME,
    Address,
    CheckpointName,
    Directory,
    OptionalAddress,
    OptionalPath,
    OptionalTarget,
    Section,
    is_loopback,
)
from scorer.config.identity import ClientTlsSettings, IdentitySettings, TlsSettings, encrypted_or_near
from scorer.config.tracing import TracingSettings

_SERVER_POLL_MS = 5000

# sockaddr_un.sun_path has 108 bytes on Linux, including the terminating NUL.
_MAX_UDS_BYTES = 107


class ServerSettings(Section):
    """Addresses, limits and timeouts of the server."""

    role: Literal["live", "shadow"] = Field(
        default="live",
        description="`live` answers requests. `shadow` is a server of the shadow pool: it observes requests "
        "that live servers send to it, answers none and follows no alias. `SetObservers` sets its bundles.",
    )
    tls: TlsSettings = Field(default_factory=TlsSettings)
    shadow_pool_tls: ClientTlsSettings = Field(default_factory=ClientTlsSettings)
    allow_remote: bool = Field(
        default=False,
        description="Allows `metrics_listen`, and `listen` and `shadow_pool` without TLS, to be addresses "
        "that other machines can reach. The server logs a warning. Protect them with a proxy or a network "
        "policy.",
    )
    metrics_allow_remote: bool = Field(
        default=False,
        description="The same for `metrics_listen` only, which has no TLS: for probes and Prometheus.",
    )
    listen: OptionalAddress = Field(
        default="127.0.0.1:7700",
        description="Address of gRPC over TCP: scoring, health, reflection. Port 0: any free port. "
        '"off": no TCP.',
    )
    uds: OptionalPath = Field(
        default=None,
        validate_default=True,
        description='Path of a Unix socket for the same services, for a sidecar, or "off".',
        examples=["scorer.sock"],
    )
    uds_mode: Literal["0600", "0660", "0666"] = Field(
        default="0600",
        description="Mode of the socket: only its owner, its group or every user can connect. A mode other "
        "than 0600 needs grants for `uid:...` in [identity].",
    )
    metrics_listen: OptionalAddress = Field(
        default="127.0.0.1:7702",
        description='Address of Prometheus metrics (`/metrics`) over HTTP, or "off".',
    )
    control_listen: Address = Field(
        default="127.0.0.1:7701",
        description="Address of the control service (status, lanes, swap, rollback). It must be loopback "
        "unless client certificates are required (`server.tls`). With grants in [identity], callers need the "
        "role operate.",
    )
    threads: int = Field(
        default=1, ge=1, le=256, description="Number of threads of the data plane, at most the CPU quota."
    )
    observe_cpu: float = Field(
        default=0.25,
        gt=0,
        le=1,
        description="Share of one core that an observe lane may use. It only uses time that requests leave "
        "idle.",
    )
    observe_queue: int = Field(
        default=1024,
        ge=1,
        le=65_536,
        description="Largest number of requests that wait for one observe lane. Further ones are dropped and "
        "counted.",
    )
    explain_threads: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Number of threads that compute explanations on demand (`Explain`), at low priority.",
    )
    explain_queue: int = Field(
        default=32,
        ge=1,
        le=65_536,
        description="Largest number of explanations on demand that wait or run. Further ones are rejected "
        "with RESOURCE_EXHAUSTED.",
    )
    shadow_pool: OptionalTarget = Field(
        default=None,
        description="host:port of the shadow pool, which evaluates observe lanes with `pool`. A server of "
        'role `shadow` sends nothing. "off": there is no pool.',
        examples=["127.0.0.1:7710"],
    )
    shadow_pool_queue_mb: int = Field(
        default=16,
        ge=1,
        le=16_384,
        description="Largest memory of requests that wait for the pool, MB. Further ones are dropped and "
        "counted.",
    )
    webhook_listen: OptionalAddress = Field(
        default=None,
        description="Address at which MLflow's registry webhooks are received over HTTP, so that the server "
        "follows an alias without waiting for the next poll. It must be loopback, behind a proxy with TLS. "
        '"off": aliases are only polled.',
        examples=["127.0.0.1:7703"],
    )
    webhook_secret_file: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="File with the secret of the webhook. Only the server may read it.",
        examples=["webhook.secret"],
    )
    max_message_bytes: int = Field(
        default=262_144,
        ge=1024,
        le=67_108_864,
        description="Largest request with one row, bytes. Larger ones are rejected before they are read.",
    )
    max_batch_bytes: int = Field(
        default=1_048_576,
        ge=1024,
        le=67_108_864,
        description="Largest request of `ScoreBatch` and of the Open Inference Protocol, bytes. The default "
        "allows 1,000 rows of 250 features.",
    )
    max_connections: int = Field(
        default=1024,
        ge=1,
        le=65_536,
        description="Largest number of connections on `listen`, and on `uds`. Further ones are closed "
        "immediately.",
    )
    max_connections_per_peer: int = Field(
        default=256,
        ge=1,
        le=65_536,
        description="Largest number of connections of one peer: an IPv4 address, the first 64 bits of an "
        "IPv6 address, or a user of the Unix socket. Raise it if many clients connect through one proxy.",
    )
    connections_per_second_per_peer: int = Field(
        default=32,
        ge=1,
        le=1_048_576,
        description="Average number of connections that one peer may open per second, with bursts of "
        "`max_connections_per_peer`. A client with a certificate is counted by its principal.",
    )
    misuse_pause_seconds: int = Field(
        default=10,
        ge=1,
        le=3600,
        description="Time for which a peer may open no connection after one of its connections was closed "
        "for a protocol violation, seconds. It grows to at most six times this value after repeated "
        "violations. Other connections of the peer stay open.",
    )
    trusted_networks: list[str] = Field(
        default=[],
        description="Networks whose addresses stand for many clients, such as those of a load balancer. "
        "`connections_per_second_per_peer` and `misuse_pause_seconds` do not apply to them.",
        examples=[["10.0.0.0/24"]],
    )
    max_inflight: int = Field(
        default=2048,
        ge=1,
        le=1_048_576,
        description="Largest number of requests in flight. Further ones are rejected immediately.",
    )
    max_inflight_per_peer: int | None = Field(
        default=None,
        ge=1,
        le=1_048_576,
        description="Largest number of requests in flight of one peer, over all of its connections. "
        "Default: half of `max_inflight`.",
        examples=[1024],
    )
    max_inflight_bytes: int = Field(
        default=134_217_728,
        ge=1_048_576,
        le=1_099_511_627_776,
        description="Largest total size of the messages of all requests in flight, bytes. A message that "
        "would exceed it is rejected. Messages of up to 4 KiB are not counted; `max_inflight` limits them.",
    )
    max_inflight_bytes_per_peer: int | None = Field(
        default=None,
        ge=65_536,
        le=1_099_511_627_776,
        description="The same limit for one peer, bytes. Default: half of `max_inflight_bytes`.",
        examples=[67_108_864],
    )
    body_timeout_ms: int | None = Field(
        default=None,
        ge=1,
        le=60_000,
        description="Time within which a request's message must arrive, independent of its deadline, "
        "milliseconds. Default: ten times the longest `p99_ms`, between 250 ms and 5 s.",
        examples=[250],
    )
    reply_timeout_ms: int | None = Field(
        default=None,
        ge=1,
        le=60_000,
        description="Time within which a client must read a reply, milliseconds. After it the stream is "
        "reset, and after 16 resets the connection is closed. Default: as for `body_timeout_ms`.",
        examples=[250],
    )
    write_timeout_ms: int = Field(
        default=5000,
        ge=1,
        le=600_000,
        description="Time after which a connection is closed if its client reads none of the data that is "
        "ready for it, milliseconds.",
    )
    idle_timeout_seconds: int = Field(
        default=300,
        ge=1,
        le=86_400,
        description="Time without a request after which a connection is closed, seconds. It is 2 s while "
        "more than three quarters of `max_connections` are open.",
    )
    memory_budget_mb: int | None = Field(
        default=None,
        ge=1,
        le=67_108_864,
        description="Largest memory of the process, MB. A bundle whose loading would exceed it is rejected "
        "before it is read. Default: 85 % of the container's limit, or of the machine's memory.",
        examples=[2048],
    )
    drain_seconds: float = Field(
        default=5.0,
        ge=0,
        le=300,
        description="Time after SIGTERM after which requests in flight are cancelled, seconds.",
    )
    core_dumps: bool = Field(
        default=False,
        description="Whether a crash may write a core dump, and debuggers of the same user may attach. Both "
        "give access to requests in the memory of the process.",
    )
    state_dir: Directory = Field(
        default=Path("state"),
        validate_default=True,
        description="Directory of the last known good lane table and its bundles, from which the server can "
        "start without the registry.",
    )

    @field_validator("listen", "metrics_listen")
    @classmethod
    def _stays_local(cls, value: str | None, info: ValidationInfo) -> str | None:
        tls = info.data.get("tls")
        is_encrypted = info.field_name == "listen" and tls is not None and tls.enabled
        if is_encrypted or value is None or is_loopback(value):
            return value
        is_metrics = info.field_name == "metrics_listen"
        if info.data.get("allow_remote") is False and not (is_metrics and info.data["metrics_allow_remote"]):
            instead = (
                "set metrics_allow_remote = true"
                if is_metrics
                else "set server.tls.certificate, or set allow_remote = true"
            )
            raise ValueError(f'"{value}" can be reached from other machines; {instead}, or use 127.0.0.1')
        return value

    @field_validator("trusted_networks")
    @classmethod
    def _networks(cls, value: list[str]) -> list[str]:
        for network in value:
            try:
                ipaddress.ip_network(network, strict=False)
            except ValueError:
                raise ValueError(
                    f'"{network}" is not a network; write it as 10.0.0.0/8 or 2001:db8::/32, '
                    "or as one address"
                ) from None
        return value

    @field_validator("shadow_pool")
    @classmethod
    def _pool_stays_near(cls, value: str | None, info: ValidationInfo) -> str | None:
        return encrypted_or_near(value, info, tls="shadow_pool_tls", name="server.shadow_pool_tls")

    @field_validator("metrics_listen", "control_listen", "webhook_listen")
    @classmethod
    def _own_port(cls, value: str | None, info: ValidationInfo) -> str | None:
        for other in ("listen", "metrics_listen", "control_listen"):
            if other == info.field_name:
                continue
            if value is not None and value == info.data.get(other) and not value.endswith(":0"):
                raise ValueError(f'"{value}" is taken by {other}; give each its own port')
        return value

    @field_validator("control_listen", "webhook_listen")
    @classmethod
    def _control_stays_local(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None or is_loopback(value):
            return value
        if info.field_name == "webhook_listen":
            raise ValueError(
                f'"{value}" can be reached from other machines; the webhook listener is loopback only: use '
                "127.0.0.1"
            )
        tls = info.data.get("tls")
        if tls is None or not tls.knows_clients or tls.client_certificates != "required":
            raise ValueError(
                f'"{value}" can be reached from other machines; the control service is loopback only: use '
                "127.0.0.1, or require client certificates (server.tls.client_ca)"
            )
        return value

    @field_validator("webhook_secret_file")
    @classmethod
    def _secret_goes_with_listener(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        listens = info.data.get("webhook_listen") is not None
        if listens and value is None:
            raise ValueError("webhook_listen is set and no secret is: name the file that holds it")
        if value is not None and "webhook_listen" in info.data and not listens:
            raise ValueError("a secret is named and webhook_listen is not set: set it, or remove the secret")
        return value

    @field_validator("uds")
    @classmethod
    def _socket_fits(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and len(str(value).encode()) > _MAX_UDS_BYTES:
            raise ValueError(
                f'"{value}" is longer than the {_MAX_UDS_BYTES} bytes of a Unix socket path; use a '
                "shorter one"
            )
        if value is None and "listen" in info.data and info.data["listen"] is None:
            raise ValueError('neither "listen" nor "uds" is set; the server would have no way in: set one')
        return value


class RegistrySettings(Section):
    """The registry of bundles: a directory, or an MLflow server."""

    path: Directory = Field(
        default=Path("registry"),
        validate_default=True,
        description="The registry's directory (`scorer registry push`).",
    )
    url: str | None = Field(
        default=None,
        pattern=r"^mlflow:https?://[^\s@/]+(/\S*)?$",
        description="Instead of `path`: an MLflow server, whose registered-model aliases are followed. "
        "Credentials are read from MLFLOW_TRACKING_TOKEN, or from MLFLOW_TRACKING_USERNAME and "
        "MLFLOW_TRACKING_PASSWORD.",
        examples=["mlflow:http://127.0.0.1:5000"],
    )
    poll_ms: int = Field(
        default=100,
        ge=10,
        le=3_600_000,
        description="Interval at which aliases are polled, milliseconds. A poll is one stat call. With "
        "`url`, a poll is one request for each alias, and the default is 5000.",
    )

    @property
    def location(self) -> str:
        """Location of the registry, as the argument of `scorer.registry.open_registry`."""
        return self.url or str(self.path)

    @property
    def interval_ms(self) -> int:
        """Effective value of `poll_ms`, whose default depends on the kind of the registry."""
        return _SERVER_POLL_MS if self.url and "poll_ms" not in self.model_fields_set else self.poll_ms

    @model_validator(mode="before")
    @classmethod
    def _one_place(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("url") is not None and "path" in value:
            raise ValueError("both path and url are set; a server follows one registry: keep one of them")
        return value


class BundleSettings(Section):
    """Signatures and releases that a bundle must have."""

    trusted_keys: list[Directory] = Field(
        default=[],
        max_length=64,
        description="Public keys in PEM (`scorer bundle keygen`), or directories with `*.pem` files. If any "
        "is set, a bundle is loaded only with the signature of a trusted key. The files are read at every "
        "load, so an added or removed key applies from the next load.",
        examples=[["keys"]],
    )
    unsigned: Literal["allow", "refuse"] | None = Field(
        default=None,
        description='Whether a bundle without a signature is loaded. Default: "refuse" if there are trusted '
        "keys.",
        examples=["allow"],
    )
    allow_rollback: bool = Field(
        default=False,
        description="Whether the registry's alias may move back to an older release than this server has "
        "served. `scorer rollback` and the platform's rollback do not need this setting.",
    )
    minimum_release: dict[str, Annotated[int, Field(ge=1, lt=1 << 63)]] = Field(
        default={},
        max_length=1000,
        description="By name of the bundle: the lowest release that is accepted, even by a server without an "
        "earlier state_dir.",
        examples=[{"fraud-checkout": 12}],
    )


class LogSettings(Section):
    """The decision log: directory, segments, syncing, queue and retention."""

    dir: OptionalPath = Field(
        default=Path("decisions"),
        validate_default=True,
        description='Directory of the segments; each server needs its own. "off": decisions are not logged.',
    )
    segment_mb: int = Field(
        default=64,
        ge=1,
        le=4096,
        description="Size at which a segment is sealed and the next one is started, MB.",
    )
    sync_ms: int = Field(
        default=50,
        ge=1,
        le=60_000,
        description="Interval at which the log is synced to disk, milliseconds: records of this time can be "
        "lost if the machine (not the process) fails.",
    )
    queue: int = Field(
        default=65_536,
        ge=16,
        le=16_777_216,
        description="Largest number of records of durability `async` that wait to be written.",
    )
    unsynced_mb: int = Field(
        default=32,
        ge=1,
        le=4096,
        description="Largest size of the records that are written and not yet synced, MB. They are kept in "
        "memory so that they can be written again. If the disk falls further behind, the log is unavailable.",
    )
    retain_days: float | None = Field(
        default=None,
        gt=0,
        le=36_500,
        description="Segments whose newest record is older than this are removed, days. Default: segments "
        "are not removed because of their age.",
        examples=[90.0],
    )
    retain_mb: int | None = Field(
        default=None,
        ge=4,
        le=1_073_741_824,
        description="The oldest segments are removed while the total size is larger than this, MB. It must "
        "hold at least four segments and should be below the size of the volume. Default: no limit.",
        examples=[6144],
    )
    prune_unshipped: bool = Field(
        default=False,
        description="Whether retention may remove records that `scorer log shipped` has not marked as "
        "shipped or exported.",
    )
    warn_full_hours: float = Field(
        default=12.0,
        gt=0,
        le=8760,
        description="A warning is logged if the disk will be full within this time at the growth of the last "
        "hour, hours.",
    )

    @model_validator(mode="after")
    def _retention_holds_segments(self) -> LogSettings:
        if self.retain_mb is not None and self.retain_mb < 4 * self.segment_mb:
            raise ValueError(
                f"retain_mb = {self.retain_mb} holds fewer than four segments of {self.segment_mb} MB: make "
                "it larger, or segment_mb smaller"
            )
        return self


class PrivacySettings(Section):
    """Storage of personal data from requests."""

    card_numbers: Literal["refuse", "mask", "off"] = Field(
        default="refuse",
        description="Treatment of ids, entities, outcomes and texts with a card number (13 to 19 digits that "
        "pass the Luhn check): `refuse` the request, `mask` the number with a keyed pseudonym, or `off`.",
    )
    entities: Literal["hash", "clear"] = Field(
        default="clear",
        description="Entities in the decision log and at observers: `hash` stores a keyed pseudonym "
        "(HMAC-SHA-256), `clear` the entity as it was sent.",
    )
    key_file: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="File with the key of `hash` and `mask`: 32 random bytes or more, the same at every "
        "replica, outside the log's directory. Without the key, pseudonyms cannot be linked to entities.",
        examples=["entity.key"],
    )
    features: dict[str, Literal["mask", "encrypt", "clear"]] = Field(
        default={},
        description="Storage of features in the log, by name, at every checkpoint: `mask` does not store the "
        "value, `encrypt` stores it encrypted with public_key_file, `clear` stores it unchanged. The name * "
        "stands for all other features.",
        examples=[{"income": "encrypt", "device_age": "mask"}],
    )
    public_key_file: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="File with the public key of `encrypt` (`scorer log keygen`). Keep the private key with "
        "the readers of the log and not on servers.",
        examples=["log-reader.pub"],
    )

    @model_validator(mode="after")
    def _rules_have_a_key(self) -> PrivacySettings:
        for key, value in (("entities", "hash"), ("card_numbers", "mask")):
            if getattr(self, key) == value and self.key_file is None:
                raise ValueError(f'{key} = "{value}" needs a key: name its file in key_file')
        if "encrypt" in self.features.values() and self.public_key_file is None:
            raise ValueError('features marked "encrypt" need a key: name its file in public_key_file')
        return self


class OutcomeSettings(Section):
    """Requirements for reported outcomes, and the tokens that prove them."""

    token_keys: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="File of the keys that sign decision tokens (`scorer token key`), the same at every "
        'replica. Changes take effect within 1 s. "off": no tokens are issued.',
        examples=["token-keys.json"],
    )
    proof: Literal["token", "known"] | None = Field(
        default=None,
        description="Proof of an outcome: with `token`, only the token of its decision; with `known`, also "
        "that the server which receives the report has the decision in memory. Default: "
        '"token" with keys, "known" without.',
        examples=["known"],
    )
    unproven: Literal["keep", "refuse"] = Field(
        default="keep",
        description="`keep` stores an unproven outcome in the log with a mark; by default it is used neither "
        "for training nor by gates. `refuse` rejects it.",
    )
    max_revision: int = Field(
        default=1000, ge=0, le=4_294_967_295, description="Highest allowed revision of an outcome."
    )
    per_decision_minute: int = Field(
        default=60,
        ge=1,
        le=1_000_000,
        description="Largest number of different reports of one outcome that are recorded per minute.",
    )
    per_caller_second: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Largest number of outcomes that one caller may report per second.",
    )

    @field_validator("proof")
    @classmethod
    def _can_be_proven(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value == "token" and "token_keys" in info.data and info.data["token_keys"] is None:
            raise ValueError("token_keys is not set, so nothing could be proven: set it, or remove proof")
        return value


class LearningSettings(Section):
    """The learning loop, which this server runs on the schedule of learn.toml."""

    workspace: OptionalPath = Field(
        default=None,
        validate_default=True,
        description='Directory of the loop. "off": this server does not run it. It needs scorer[train]. Jobs '
        "run in separate processes with low priority.",
        examples=["learning"],
    )
    config: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="Path of learn.toml, whose [schedule] has the times of the jobs.",
        examples=["learn.toml"],
    )

    @field_validator("config")
    @classmethod
    def _goes_with_workspace(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and "workspace" in info.data and info.data["workspace"] is None:
            raise ValueError("a config is named and workspace is not set: set it, or remove the config")
        return value


class Fallback(Section):
    """The answer given when the model cannot answer in time."""

    decision: str | None = Field(default=None, min_length=1)
    score: float | None = Field(default=None, ge=0, le=1)
    action: str | None = Field(default=None, min_length=1)


def _answer_fits(answer: Fallback, kind: str, what: str) -> None:
    wanted = {"decision", "score"} if kind == "score" else {"action"}
    if answer.model_fields_set != wanted:
        raise ValueError(
            f'{what} of a checkpoint of kind "{kind}" has exactly: {" and ".join(sorted(wanted))}'
        )


class Caps(Section):
    """Limits on what the fallback may decide, so that an overload cannot be used to bypass the model."""

    window_seconds: float = Field(
        default=60.0, ge=1, le=86_400, description="Length of the windows that the limits apply to, seconds."
    )
    max_count: int | None = Field(
        default=None, ge=0, description="Largest number of fallback answers per window."
    )
    max_total_amount: float | None = Field(
        default=None, ge=0, description="Largest sum of the amounts of fallback answers per window."
    )
    max_single_amount: float | None = Field(
        default=None, ge=0, description="Largest amount of one fallback answer."
    )
    amount_feature: str | None = Field(
        default=None,
        min_length=1,
        description="Feature with the amount. If it is missing in a request, the limits on amounts count as "
        "reached.",
    )
    on_cap: Literal["refuse"] | Fallback = Field(
        default="refuse",
        description='Answer beyond the caps: a stricter answer of the same form, or "refuse".',
    )

    @model_validator(mode="after")
    def _limits_something(self) -> Caps:
        by_amount = self.max_total_amount is not None or self.max_single_amount is not None
        wrong = []
        if self.max_count is None and not by_amount:
            wrong.append("no limit is set: set max_count, max_total_amount or max_single_amount")
        if by_amount and self.amount_feature is None:
            wrong.append("limits on amounts need amount_feature")
        if self.amount_feature is not None and not by_amount:
            wrong.append("amount_feature is set and no limit on amounts is: set one or remove it")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


class RewardRange(Section):
    """Range of the values of one kind of outcome."""

    min: float
    max: float

    @model_validator(mode="after")
    def _in_order(self) -> RewardRange:
        if self.min > self.max:
            raise ValueError(f"min is {self.min:g} and max {self.max:g}: the lower one comes first")
        return self


class CheckpointSettings(Section):
    """A named decision point of the customer journey."""

    kind: Literal["score", "action"] = Field(
        description='"score" (returns one probability) or "action" (chooses one of several actions).'
    )
    alias: str = Field(
        default="",
        pattern=rf"^{NAME}@{NAME}$",
        description="Registry alias to follow, in the form name@alias. When it moves, the new bundle is "
        "checked and replaces the live one. A server of role `shadow` needs none.",
    )
    p99_ms: float = Field(
        default=10.0,
        gt=0,
        le=60_000,
        description="The SLA: 99 % of responses within this time, milliseconds.",
    )
    tier: int = Field(
        default=0,
        ge=0,
        le=3,
        description="Priority under overload: tier 0 is shed last, tier 3 first. ScoreBatch always has tier "
        "3.",
    )
    mode: Literal["off", "observe", "enforce"] = Field(
        default="enforce",
        description="What happens to requests that cannot be answered within `p99_ms`: `enforce` sheds "
        "them or answers with the fallback, `observe` only counts them, `off` does nothing.",
    )
    warmup_max_ratio: float = Field(
        default=3.0,
        gt=0,
        le=1e6,
        description="A candidate is rejected if its warm-up takes longer than this multiple of the live "
        "bundle's, measured alternately. `scorer swap --allow-slower` accepts a slower model nevertheless.",
    )
    durability: Literal["async", "written", "sync"] | None = Field(
        default=None,
        description="When an answer is sent: with `async` immediately, with `written` when its record "
        "survives kill -9, with `sync` when it survives a power failure. "
        'Default: "async" for scores, "written" for actions.',
    )
    max_batch_rows: int = Field(
        default=1000, ge=1, le=1_000_000, description="Largest number of rows of one ScoreBatch."
    )
    reasons: int = Field(
        default=0,
        ge=0,
        le=32,
        description="Number of reasons that are computed and recorded for every answer, whether or not the "
        "request asks for them.",
    )
    outcomes: dict[str, RewardRange] | None = Field(
        default=None,
        examples=[{"authorised": {"min": 0.0, "max": 1.0}}],
        description="Range of the values of outcomes, by kind. A value outside is rejected. Kinds that are "
        "not listed may have any finite value.",
    )
    fallback: Fallback | None = Field(
        default=None,
        examples=[{"action": "<an action's id>"}],
        description="Answer when the model cannot answer, always marked as a fallback. Score: "
        "{ decision, score }. Action: { action }. Without a fallback such a request fails.",
    )

    caps: Caps | None = Field(
        default=None,
        description="Limits on what the fallback may decide: { window_seconds, max_count, max_total_amount, "
        "max_single_amount, amount_feature, on_cap }. Beyond them, the answer is on_cap, or the request is "
        "rejected.",
        examples=[{"window_seconds": 60.0, "max_count": 1000, "on_cap": "refuse"}],
    )

    @field_validator("caps")
    @classmethod
    def _caps_fit(cls, value: Caps | None, info: ValidationInfo) -> Caps | None:
        if value is None:
            return value
        if "fallback" in info.data and info.data["fallback"] is None:
            raise ValueError("caps limit the fallback, and there is none: add fallback or remove caps")
        if "kind" in info.data and isinstance(value.on_cap, Fallback):
            _answer_fits(value.on_cap, info.data["kind"], "on_cap")
        return value

    @field_validator("fallback")
    @classmethod
    def _fallback_fits(cls, value: Fallback | None, info: ValidationInfo) -> Fallback | None:
        if value is not None and "kind" in info.data:
            _answer_fits(value, info.data["kind"], "the fallback")
        return value

    @property
    def effective_durability(self) -> Literal["async", "written", "sync"]:
        """Effective value of `durability`, whose default depends on the kind."""
        return self.durability or ("async" if self.kind == "score" else "written")


class Settings(Section):
    """The settings of ``scorer serve``."""

    server: ServerSettings = Field(default_factory=ServerSettings)
    registry: RegistrySettings = Field(default_factory=RegistrySettings)
    bundles: BundleSettings = Field(default_factory=BundleSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    privacy: PrivacySettings = Field(default_factory=PrivacySettings)

    features: FeatureSettings = Field(default_factory=FeatureSettings)
    outcomes: OutcomeSettings = Field(default_factory=OutcomeSettings)
    learning: LearningSettings = Field(default_factory=LearningSettings)
    identity: IdentitySettings = Field(default_factory=IdentitySettings)
    tracing: TracingSettings = Field(default_factory=TracingSettings)
    checkpoints: dict[CheckpointName, CheckpointSettings] = Field(min_length=1)

    @property
    def aliases(self) -> list[str]:
        """The registry aliases that the server follows; empty for role `shadow`."""
        if self.server.role == "shadow":
            return []
        return [checkpoint.alias for checkpoint in self.checkpoints.values() if checkpoint.alias]

    @model_validator(mode="after")
    def _key_is_apart_from_the_log(self) -> Settings:
        key, log = self.privacy.key_file, self.log.dir
        if key is not None and log is not None and key.absolute().is_relative_to(log.absolute()):
            raise ValueError(
                "privacy.key_file: the key lies in the log's directory, and whoever has the log would have "
                "the key: move it elsewhere"
            )
        return self

    @model_validator(mode="after")
    def _certificates_have_grants(self) -> Settings:
        if self.server.uds_mode != "0600" and not self.identity.enabled:
            raise ValueError(
                "server.uds_mode: it lets other users connect and identity.grants is empty: grant roles to "
                'uid:..., or use "0600"'
            )
        if self.server.tls.knows_clients and not self.identity.enabled:
            raise ValueError(
                "server.tls.client_ca: identity.grants is empty, so certificates would grant nothing: add "
                "grants, or remove client_ca"
            )
        return self

    @model_validator(mode="after")
    def _webhooks_have_a_sender(self) -> Settings:
        if self.server.webhook_listen is not None and self.registry.url is None:
            raise ValueError(
                "server.webhook_listen: registry.url is not set, and a directory sends no webhooks: remove it"
            )
        return self
