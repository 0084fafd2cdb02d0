"""The settings, their types, limits and defaults.

Each default is a choice; the description beside it says what for. The commented example
file is printed from these descriptions, so it cannot drift.
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
from scorer.config.identity import ClientTlsSettings, IdentitySettings, TlsSettings

_SERVER_POLL_MS = 5000

# sockaddr_un.sun_path holds 108 bytes on Linux, one of them the terminating zero.
_MAX_UDS_BYTES = 107


class ServerSettings(Section):
    """Where the server listens and what it may use."""

    role: Literal["live", "shadow"] = Field(
        default="live",
        description="`live` answers requests. `shadow` is the shadow pool: it observes requests that live "
        "servers send it, answers none and follows no alias; `SetObservers` sets its bundles.",
    )
    tls: TlsSettings = Field(default_factory=TlsSettings)
    shadow_pool_tls: ClientTlsSettings = Field(default_factory=ClientTlsSettings)
    allow_remote: bool = Field(
        default=False,
        description="Lets `metrics_listen`, and `listen` and `shadow_pool` without TLS, name an address that "
        "other machines reach; the server warns of plaintext. Put a proxy or a network policy in front.",
    )
    metrics_allow_remote: bool = Field(
        default=False,
        description="The same for `metrics_listen` alone, which has no TLS: for probes and Prometheus.",
    )
    listen: OptionalAddress = Field(
        default="127.0.0.1:7700",
        description='gRPC over TCP: scoring, health, reflection. Port 0: any free one. "off": none.',
    )
    uds: OptionalPath = Field(
        default=None,
        validate_default=True,
        description='The same over a Unix socket, for a sidecar: a path, or "off".',
        examples=["scorer.sock"],
    )
    uds_mode: Literal["0600", "0660", "0666"] = Field(
        default="0600",
        description="Mode of the socket: its owner, its group or every user connects. More than the owner "
        "needs grants of `uid:...` in [identity].",
    )
    metrics_listen: OptionalAddress = Field(
        default="127.0.0.1:7702", description='Prometheus `/metrics` over HTTP, or "off".'
    )
    control_listen: Address = Field(
        default="127.0.0.1:7701",
        description="The control service (status, lanes, swap, rollback). Loopback, unless client "
        "certificates are required (`server.tls`). With grants in [identity], callers need the role operate.",
    )
    threads: int = Field(
        default=1, ge=1, le=256, description="Threads of the data plane; at most the CPU quota."
    )
    observe_cpu: float = Field(
        default=0.25,
        gt=0,
        le=1,
        description="Share of one core that an observe lane may use, at most what requests leave idle.",
    )
    observe_queue: int = Field(
        default=1024,
        ge=1,
        le=65_536,
        description="Requests that may wait for one observe lane; further ones are dropped and counted.",
    )
    shadow_pool: OptionalTarget = Field(
        default=None,
        description="host:port of the shadow pool, where observe lanes with `pool` are sent. A server of "
        'role `shadow` sends nothing. "off": there is no pool.',
        examples=["127.0.0.1:7710"],
    )
    shadow_pool_queue_mb: int = Field(
        default=16,
        ge=1,
        le=16_384,
        description="Memory of requests that wait for the pool, MB; further ones are dropped and counted.",
    )
    webhook_listen: OptionalAddress = Field(
        default=None,
        description="Where MLflow's registry webhooks are heard over HTTP, so that an alias's move is acted "
        'upon at once: always loopback, behind a proxy with TLS. "off": only polling notices.',
        examples=["127.0.0.1:7703"],
    )
    webhook_secret_file: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="The file that holds the secret which the webhook was created with, readable by the "
        "server alone.",
        examples=["webhook.secret"],
    )
    max_message_bytes: int = Field(
        default=262_144,
        ge=1024,
        le=67_108_864,
        description="Largest request about one row, bytes; larger ones are rejected before they are read.",
    )
    max_batch_bytes: int = Field(
        default=1_048_576,
        ge=1024,
        le=67_108_864,
        description="The same for `ScoreBatch` and the Open Inference Protocol: 1,000 rows of 250 features.",
    )
    max_connections: int = Field(
        default=1024,
        ge=1,
        le=65_536,
        description="Largest number of connections on `listen`, and on `uds`; further ones are closed "
        "at once.",
    )
    max_connections_per_peer: int = Field(
        default=256,
        ge=1,
        le=65_536,
        description="Those of one peer: an IPv4 address, the first 64 bits of an IPv6 address, or a user of "
        "the Unix socket. Raise it where many clients come through one proxy.",
    )
    connections_per_second_per_peer: int = Field(
        default=32,
        ge=1,
        le=1_048_576,
        description="Connections that one peer may open per second in the long run; at once it may open "
        "`max_connections_per_peer`. A client that shows a certificate is counted by its principal.",
    )
    misuse_pause_seconds: int = Field(
        default=10,
        ge=1,
        le=3600,
        description="Time in which a peer may open no connection after one of them was closed for breaking a "
        "rule; six times as long at most after several. Its other connections stay.",
    )
    trusted_networks: tuple[str, ...] = Field(
        default=(),
        description="Networks whose addresses stand for many clients, such as those of a load balancer or of "
        "a sidecar: `connections_per_second_per_peer` and `misuse_pause_seconds` do not apply to them.",
        examples=[["10.0.0.0/24"]],
    )
    max_inflight: int = Field(
        default=2048,
        ge=1,
        le=1_048_576,
        description="Largest number of requests in flight; further ones are rejected at once.",
    )
    max_inflight_per_peer: int | None = Field(
        default=None,
        ge=1,
        le=1_048_576,
        description="Those of one peer; one of its connections may have as many as are left of it. "
        "Default: half of `max_inflight`.",
        examples=[1024],
    )
    max_inflight_bytes: int = Field(
        default=134_217_728,
        ge=1_048_576,
        le=1_099_511_627_776,
        description="Largest number of bytes of the messages of all requests in flight; a message that "
        "exceeds them is rejected. Messages of up to 4 KiB are not counted: `max_inflight` bounds those.",
    )
    max_inflight_bytes_per_peer: int | None = Field(
        default=None,
        ge=65_536,
        le=1_099_511_627_776,
        description="Those of one peer. Default: half of `max_inflight_bytes`.",
        examples=[67_108_864],
    )
    body_timeout_ms: int | None = Field(
        default=None,
        ge=1,
        le=60_000,
        description="Time that a request's message has to arrive, whatever its deadline. Default: ten times "
        "the longest `p99_ms`, from 250 ms to 5 s.",
        examples=[250],
    )
    reply_timeout_ms: int | None = Field(
        default=None,
        ge=1,
        le=60_000,
        description="Time that a client has to take a reply; then its stream is reset, and after 16 of those "
        "the connection is closed. Default: as for `body_timeout_ms`.",
        examples=[250],
    )
    write_timeout_ms: int = Field(
        default=5000,
        ge=1,
        le=600_000,
        description="Time after which a connection is closed whose client takes nothing of what it is owed.",
    )
    idle_timeout_seconds: int = Field(
        default=300,
        ge=1,
        le=86_400,
        description="Time without a request after which a connection is closed; 2 s while more than three "
        "quarters of `max_connections` are open.",
    )
    memory_budget_mb: int | None = Field(
        default=None,
        ge=1,
        le=67_108_864,
        description="What the process may hold once a further bundle is loaded; one that does not fit is "
        "refused before it is read. Default: 85 % of the container's limit, or of the machine's memory.",
        examples=[2048],
    )
    drain_seconds: float = Field(
        default=5.0,
        ge=0,
        le=300,
        description="Seconds after SIGTERM that requests in flight may take before they are cancelled.",
    )
    core_dumps: bool = Field(
        default=False,
        description="Whether a crash may write the memory of this process, with the requests in it, to a "
        "core dump, and debuggers of the same user may read it.",
    )
    state_dir: Directory = Field(
        default=Path("state"),
        validate_default=True,
        description="The last known good lane table and its bundles: what the server boots from "
        "without the registry.",
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
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
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
        tls = info.data.get("shadow_pool_tls")
        if value is None or is_loopback(value) or (tls is not None and tls.ca is not None):
            return value
        if info.data.get("allow_remote") is False:
            raise ValueError(
                f'"{value}" is another machine, and what is sent there is not encrypted; set '
                "server.shadow_pool_tls.ca, or allow_remote = true, or use 127.0.0.1"
            )
        return value

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
    """Where bundles come from: a directory, or an MLflow server."""

    path: Directory = Field(
        default=Path("registry"),
        validate_default=True,
        description="The registry's directory (`scorer registry push`).",
    )
    url: str | None = Field(
        default=None,
        pattern=r"^mlflow:https?://[^\s@/]+(/\S*)?$",
        description="In place of `path`: an MLflow server, whose registered-model aliases are followed. "
        "Credentials come from MLFLOW_TRACKING_TOKEN, or _USERNAME and _PASSWORD.",
        examples=["mlflow:http://127.0.0.1:5000"],
    )
    poll_ms: int = Field(
        default=100,
        ge=10,
        le=3_600_000,
        description="Interval at which aliases are polled, milliseconds. A poll is one stat call; "
        "at a `url` it is a request for each alias, and the default 5000.",
    )

    @property
    def location(self) -> str:
        """Location of the registry, as `scorer.registry.open_registry` takes it."""
        return self.url or str(self.path)

    @property
    def interval_ms(self) -> int:
        """`poll_ms`, with the default of a server filled in."""
        return _SERVER_POLL_MS if self.url and "poll_ms" not in self.model_fields_set else self.poll_ms

    @model_validator(mode="before")
    @classmethod
    def _one_place(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("url") is not None and "path" in value:
            raise ValueError("both path and url are set; a server follows one registry: keep one of them")
        return value


class BundleSettings(Section):
    """Which bundles this server accepts."""

    trusted_keys: list[Directory] = Field(
        default=[],
        max_length=64,
        description="Public keys in PEM (`scorer bundle keygen`), or directories of them (`*.pem`): once one "
        "is named, a bundle is loaded only with the signature of a trusted key. Read for every load: a key "
        "that is added or removed counts from the next bundle on.",
        examples=[["keys"]],
    )
    unsigned: Literal["allow", "refuse"] | None = Field(
        default=None,
        description='A bundle without a signature: "allow" loads it, "refuse" does not. Default: "refuse" '
        "once a trusted key is named.",
        examples=["allow"],
    )
    allow_rollback: bool = Field(
        default=False,
        description="Lets the registry's alias go back to an older release than this server has served. "
        "`scorer rollback`, and the platform's rollback, need no such setting.",
    )
    minimum_release: dict[str, Annotated[int, Field(ge=1, lt=1 << 63)]] = Field(
        default={},
        max_length=1000,
        description="By bundle name: the lowest release that is ever taken, also by a server that starts "
        "without a state_dir of before.",
        examples=[{"fraud-checkout": 12}],
    )


class LogSettings(Section):
    """The decision log: directory, segments, syncing and queue."""

    dir: OptionalPath = Field(
        default=Path("decisions"),
        validate_default=True,
        description='Directory of the segments, one server each. "off": decisions are not kept.',
    )
    segment_mb: int = Field(
        default=64,
        ge=1,
        le=4096,
        description="Size of a segment, MB; a full one is sealed and the next begins.",
    )
    sync_ms: int = Field(
        default=50,
        ge=1,
        le=60_000,
        description="At most this much is lost when the machine (not the process) dies.",
    )
    queue: int = Field(
        default=65_536,
        ge=16,
        le=16_777_216,
        description="Records of durability `async` that may wait to be written.",
    )
    unsynced_mb: int = Field(
        default=32,
        ge=1,
        le=4096,
        description="Records that are written and not yet on the device, MB; they are kept in memory to be "
        "written again. A disk that falls further behind makes the log unavailable.",
    )
    retain_days: float | None = Field(
        default=None,
        gt=0,
        le=36_500,
        description="Segments whose newest record is older are removed. Default: none is, whatever its age.",
        examples=[90.0],
    )
    retain_mb: int | None = Field(
        default=None,
        ge=4,
        le=1_073_741_824,
        description="The oldest segments are removed while all together are larger, MB; at least four "
        "segments. Keep it below the size of the volume. Default: no limit.",
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
        description="An event warns when the disk will be full earlier than this, at the growth of the "
        "newest hour.",
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
    """What of a request may be stored."""

    card_numbers: Literal["refuse", "mask", "off"] = Field(
        default="refuse",
        description="Ids, entities, outcomes and texts that hold a card number (Luhn, 13 to 19 digits): "
        "`refuse` the request, `mask` the number by a keyed pseudonym, or `off`.",
    )
    entities: Literal["hash", "clear"] = Field(
        default="clear",
        description="Entities in the decision log and at observers: `hash` stores their keyed pseudonym "
        "(HMAC-SHA-256), `clear` what was sent.",
    )
    key_file: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="The key of `hash` and `mask`: a file of 32 random bytes or more, the same at every "
        "replica, outside the log. Whoever lacks it cannot link pseudonyms.",
        examples=["entity.key"],
    )
    features: dict[str, Literal["mask", "encrypt", "clear"]] = Field(
        default={},
        description="How the log stores features, by name, at every checkpoint: `mask` never stores the "
        "value, `encrypt` stores it encrypted to public_key_file, `clear` as it is. The name * stands for "
        "all others.",
        examples=[{"income": "encrypt", "device_age": "mask"}],
    )
    public_key_file: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="The public key of `encrypt` (`scorer log keygen`): the private one stays with those who "
        "read the log, away from servers.",
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
    """What is demanded of reported outcomes, and the tokens that prove them."""

    token_keys: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="File of the keys that sign decision tokens (`scorer token key`), the same at every "
        'replica; a changed file is in force within a second. "off": no tokens are issued.',
        examples=["token-keys.json"],
    )
    proof: Literal["token", "known"] | None = Field(
        default=None,
        description="What proves an outcome: the `token` of its decision, or also that the decision is "
        '`known` to the server that receives the report. Default: "token" with keys, "known" without.',
        examples=["known"],
    )
    unproven: Literal["keep", "refuse"] = Field(
        default="keep",
        description="An unproven outcome is kept in the log, marked, and by default used neither for "
        "training nor by gates; or it is refused.",
    )
    max_revision: int = Field(
        default=1000, ge=0, le=4_294_967_295, description="The highest revision of an outcome."
    )
    per_decision_minute: int = Field(
        default=60,
        ge=1,
        le=1_000_000,
        description="Reports of one outcome that are recorded within a minute, beside equal ones.",
    )
    per_caller_second: int = Field(
        default=10_000, ge=1, le=1_000_000, description="Outcomes that one caller may report per second."
    )

    @field_validator("proof")
    @classmethod
    def _can_be_proven(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value == "token" and "token_keys" in info.data and info.data["token_keys"] is None:
            raise ValueError("token_keys is not set, so nothing could be proven: set it, or remove proof")
        return value


class LearningSettings(Section):
    """The learning loop, run by this server at the times of learn.toml."""

    workspace: OptionalPath = Field(
        default=None,
        validate_default=True,
        description='Directory of the loop; "off": this server does not learn. Needs scorer[train]; jobs '
        "are processes of their own, of low priority.",
        examples=["learning"],
    )
    config: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="learn.toml, whose [schedule] says what runs when.",
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
    """How much may be decided by the fallback: an overload must not become a way around the model."""

    window_seconds: float = Field(
        default=60.0, ge=1, le=86_400, description="The limits hold for each window of this length."
    )
    max_count: int | None = Field(default=None, ge=0, description="Most fallback answers per window.")
    max_total_amount: float | None = Field(
        default=None, ge=0, description="Largest sum of their amounts per window."
    )
    max_single_amount: float | None = Field(default=None, ge=0, description="Largest amount of one of them.")
    amount_feature: str | None = Field(
        default=None,
        min_length=1,
        description="The feature that holds the amount. Where it is missing, limits on amounts "
        "count as reached.",
    )
    on_cap: Literal["refuse"] | Fallback = Field(
        default="refuse",
        description='What is answered beyond the caps: a stricter answer of the same form, or "refuse".',
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
    """What outcomes of one kind may be worth."""

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
        description='"score" (one probability) or "action" (chooses one of many).'
    )
    alias: str = Field(
        default="",
        pattern=rf"^{NAME}@{NAME}$",
        description="The registry alias to follow: name@alias. When it moves, the new bundle is "
        "checked and swapped in. A server of role `shadow` follows none and needs none.",
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
        description="Priority under overload: 0 is shed last, 3 first. ScoreBatch always counts as 3.",
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
        "bundle's, measured in turns. `scorer swap --allow-slower` releases a larger model all the same.",
    )
    durability: Literal["async", "written", "sync"] | None = Field(
        default=None,
        description="When an answer may leave: `async` at once, `written` when its record survives "
        "kill -9, `sync` when "
        'it survives a power cut. Default: "async" for scores, "written" for actions.',
    )
    max_batch_rows: int = Field(
        default=1000, ge=1, le=1_000_000, description="Rows that one ScoreBatch may hold."
    )
    outcomes: dict[str, RewardRange] | None = Field(
        default=None,
        examples=[{"authorised": {"min": 0.0, "max": 1.0}}],
        description="What outcomes may be worth, by kind; a value outside is refused. Kinds that are not "
        "listed may be any finite number.",
    )
    fallback: Fallback | None = Field(
        default=None,
        examples=[{"action": "<an action's id>"}],
        description="The answer when the model has none, always flagged as such. Score: { decision, score }. "
        "Action: { action }. Without it such a request fails.",
    )

    caps: Caps | None = Field(
        default=None,
        description="How much the fallback may decide: { window_seconds, max_count, max_total_amount, "
        "max_single_amount, amount_feature, on_cap }. Beyond it, on_cap is answered (a stricter answer), "
        "or the request refused.",
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
        """The durability in force, with the kind's default filled in."""
        return self.durability or ("async" if self.kind == "score" else "written")


class Settings(Section):
    """Everything that ``scorer serve`` needs to know."""

    server: ServerSettings = Field(default_factory=ServerSettings)
    registry: RegistrySettings = Field(default_factory=RegistrySettings)
    bundles: BundleSettings = Field(default_factory=BundleSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    privacy: PrivacySettings = Field(default_factory=PrivacySettings)

    outcomes: OutcomeSettings = Field(default_factory=OutcomeSettings)
    learning: LearningSettings = Field(default_factory=LearningSettings)
    identity: IdentitySettings = Field(default_factory=IdentitySettings)
    checkpoints: dict[CheckpointName, CheckpointSettings] = Field(min_length=1)

    @property
    def aliases(self) -> list[str]:
        """The registry aliases that are followed; none by a shadow pool."""
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
