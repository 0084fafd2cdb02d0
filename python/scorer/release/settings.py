"""`platform.toml`, the settings of `scorer platform serve`: types, limits, defaults and descriptions.

`scorer platform config` prints a commented example that is generated from these descriptions. This module
reads only the settings file and the files of secrets that it names.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from scorer.config.example import example as example_text
from scorer.config.fields import (
    NAME,
    Address,
    CheckpointName,
    Directory,
    OptionalPath,
    Section,
    is_loopback,
)
from scorer.config.identity import ClientTlsSettings
from scorer.config.source import SettingsSource
from scorer.drift.settings import DriftSettings
from scorer.log.proof import UNPROVEN_DESCRIPTION
from scorer.release.adoption_settings import AdoptionTask
from scorer.release.agent_settings import AgentSettings
from scorer.release.backtest_settings import BacktestSettings
from scorer.release.build_settings import BuildSettings
from scorer.release.comparison_settings import CheckpointComparison
from scorer.release.discovery_settings import DiscoverySettings, as_groups
from scorer.release.gates.grammar import Gates
from scorer.release.model import Stage
from scorer.release.oidc_settings import OidcSettings
from scorer.release.review_settings import ReviewSettings
from scorer.release.segments.settings import SegmentSettings
from scorer.release.table_settings import TableSettings
from scorer.release.web_settings import Networks, WebSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

FILTER_OPS = ("==", "!=", "<", "<=", ">", ">=", "in", "missing", "present")
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")


# --- kinds of values ---


def _endpoint(value: Any) -> Any:
    """Validate the `host:port` of a remote server. Its name is resolved when it is called."""
    if not isinstance(value, str):
        return value
    host, separator, port = value.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        known = ipaddress.ip_address(bare).version == 6 or bare == host
    except ValueError:
        known = bare == host and _HOST.fullmatch(host) is not None
    if not (separator and known and port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
        raise ValueError(f'"{value}" is not an address; write "127.0.0.1:7701" or "scorer-0.scorer:7701"')
    return value


def _database(value: Any, info: ValidationInfo) -> Any:
    """Validate a database URL. `$NAME` is replaced by an environment variable, for passwords."""
    if not isinstance(value, str):
        return value
    context = info.context or {}
    if variable := _VARIABLE.fullmatch(value):
        name = variable[1]
        value = context.get("environment", os.environ).get(name, "")
        if not value:
            raise ValueError(f"environment variable {name} is not set; set it")
    scheme, separator, rest = value.partition("://")
    if separator and scheme.startswith("postgresql"):
        return f"postgresql+psycopg://{rest}"
    if separator and scheme != "sqlite":
        # The value may contain a password, so the error names only the scheme.
        raise ValueError(
            f'"{scheme}://" is not a supported database; write '
            '"sqlite:///platform.sqlite" or "postgresql://user@host/name"'
        )
    path = rest.removeprefix("/") if separator else value
    if not path or path == ":memory:":
        raise ValueError('an in-memory database is not durable; name a file: "sqlite:///platform.sqlite"')
    return f"sqlite:///{Path(context.get('base', Path.cwd())) / Path(path).expanduser()}"


def _registry(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    if value.startswith("mlflow:"):
        from scorer.errors import ScorerError
        from scorer.registry.mlflow.rest import check_url

        try:
            check_url(value.removeprefix("mlflow:"))
        except ScorerError as error:
            raise ValueError(str(error)) from None
        return value
    if not value:
        raise ValueError('the registry must be a directory or "mlflow:http://host:port"')
    return str(Path((info.context or {}).get("base", Path.cwd())) / Path(value).expanduser())


def check_filter(text: str) -> str:
    """Validate a lane's filter, which must be a JSON list of conditions; empty: every request."""
    if not text:
        return text
    form = 'write a JSON list such as [{"feature": "amount", "op": ">", "value": 100}]'
    try:
        conditions = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"the filter is not JSON; {form}") from None
    if not isinstance(conditions, list):
        raise ValueError(f"the filter is not a list; {form}")  # noqa: TRY004 - pydantic takes ValueError
    for condition in conditions:
        keys = set(condition) if isinstance(condition, dict) else set()
        op = condition.get("op") if isinstance(condition, dict) else None
        wanted = {"feature", "op"} if op in ("missing", "present") else {"feature", "op", "value"}
        if keys != wanted or not isinstance(condition["feature"], str) or op not in FILTER_OPS:
            raise ValueError(
                f"{json.dumps(condition)[:80]} is not a condition; ops are {' '.join(FILTER_OPS)}; {form}"
            )
    return text


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class StageSettings(Section):
    """One step of a canary release."""

    share: float = Field(gt=0, lt=1, description="Share of the answers.")
    minutes: float = Field(
        gt=0,
        le=100_000,
        description="Minimum length of the stage in minutes. It also lasts until its gates pass.",
    )
    pause: bool = Field(
        default=False,
        description="Whether the release holds the shares at the end of the stage until an approver "
        "promotes it.",
    )


def _stages(value: Sequence[StageSettings]) -> tuple[Stage, ...]:
    shares = [stage.share for stage in value]
    if shares != sorted(set(shares)):
        raise ValueError(f"shares {shares} must increase from stage to stage")
    return tuple(Stage(stage.share, stage.minutes, stage.pause) for stage in value)


if TYPE_CHECKING:
    # Types of the validated values. The file's tables are validated as sections first.
    Endpoint = str
    Stages = tuple[Stage, ...]
    Members = tuple["FleetMember", ...]
    Groups = tuple[DiscoverySettings, ...]
else:
    Groups = Annotated[tuple[DiscoverySettings, ...], BeforeValidator(as_groups)]
    Endpoint = Annotated[str, BeforeValidator(_endpoint)]
    Stages = Annotated[tuple[StageSettings, ...], BeforeValidator(_as_tuple), AfterValidator(_stages)]
    Members = Annotated[tuple["FleetMember", ...], BeforeValidator(_as_tuple)]


# --- the file ---


class PlatformSettings(Section):
    """The process: its address, its state and its limits."""

    allow_remote: bool = Field(
        default=False,
        description="Allows an address in `listen` that other machines can reach. The process has no TLS, so "
        "put a proxy in front of it.",
    )
    listen: Address = Field(
        default="127.0.0.1:7710", description="Address of the pages and REST (HTTP). Port 0: any free port."
    )
    database: Annotated[str, BeforeValidator(_database)] = Field(
        default="sqlite:///platform.sqlite",
        validate_default=True,
        description="Database URL: sqlite:///FILE or postgresql://user@host/name. `$NAME` is replaced by the "
        "environment variable; use it for passwords.",
    )
    data_dir: Directory = Field(
        default=Path("platform"),
        validate_default=True,
        description="Directory for unfinished uploads, verified copies of bundles and stored reports. It may "
        "be local to this machine.",
    )
    registry: Annotated[str, BeforeValidator(_registry)] = Field(
        default="registry",
        validate_default=True,
        description="Registry of bundles and aliases: a directory, or mlflow:http://host:port. The servers "
        "must use the same registry.",
    )
    name: str = Field(
        default="platform",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="Name of this platform, which servers show as the manager of their checkpoints. All "
        "processes of one database use the same name, and each platform uses its own.",
    )
    reach_seconds: float = Field(
        default=5.0,
        gt=0,
        le=60,
        description="Longest time in seconds that a rollback or pipeline round waits for one server. "
        "A slower server is retried.",
    )
    tick_ms: int = Field(
        default=500, ge=10, le=60_000, description="Interval of the pipeline's rounds, in milliseconds."
    )
    public_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^/\s?#@]+(/[^\s?#]*)?$",
        description="Base URL of links, also in messages. Default: the address in `listen`.",
        examples=["https://scorer.example.com"],
    )
    session_hours: float = Field(
        default=12.0, gt=0, le=720, description="Lifetime of a browser session, in hours."
    )
    approval_days: float = Field(
        default=7.0,
        gt=0,
        le=365,
        description="Days after which a RELEASE without an approval expires.",
    )
    upload_mb: int = Field(
        default=512, ge=1, le=65_536, description="Largest bundle that can be uploaded, unpacked, in MiB."
    )
    trusted_keys: list[Directory] = Field(
        default=[],
        max_length=64,
        description="Public keys in PEM (`scorer bundle keygen`), or directories of them, as in the servers' "
        "[bundles]: once one is named, a change request takes only bundles that a trusted key has signed.",
        examples=[["keys"]],
    )
    logs: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="Directory with the decision log of each server in a subdirectory that has the server's "
        "name, also of servers that are gone. `log` of a server has precedence.",
        examples=["logs"],
    )
    scoring: list[Endpoint] = Field(
        default=[],
        max_length=64,
        description="Addresses of scoring services, such as that of a balancer, which receive the outcomes "
        "of reviews if the server of the decision has no address of its own (`scoring` of [[fleet]]).",
        examples=[["scorer.internal:7700"]],
    )
    learning: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="Workspace of `scorer learn`. The pages show its generations and reports.",
        examples=["learning"],
    )
    mlflow_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^/\s?#@]+(/[^\s?#]*)?$",
        description="Address of the MLflow server that has the training runs named in lineages. Pages link "
        "to the runs. Default: the server of an mlflow: registry, else no links.",
        examples=["https://mlflow.example.com"],
    )
    notification_networks: Networks = Field(
        default=(),
        description="Private networks, or loopback, that notifications may be sent to. Default: public "
        "addresses only. Link-local addresses are always rejected.",
        examples=[["10.20.0.0/16"]],
    )
    trusted_proxy_header: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z][A-Za-z0-9-]{0,63}$",
        description="Header in which an authenticating proxy names the user. It is accepted only together "
        "with the secret.",
        examples=["X-Forwarded-User"],
    )
    trusted_proxy_secret_file: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="File with the secret that the proxy sends as X-Proxy-Secret.",
        examples=["proxy.secret"],
    )

    @property
    def runs_url(self) -> str | None:
        """Address of the MLflow server that pages link training runs to; None: there is none."""
        scheme, _, address = self.registry.partition(":")
        return self.mlflow_url or (address if scheme == "mlflow" else None)

    @field_validator("listen")
    @classmethod
    def _stays_local(cls, value: str, info: ValidationInfo) -> str:
        if not is_loopback(value) and info.data.get("allow_remote") is False:
            raise ValueError(
                f'"{value}" can be reached from other machines; set allow_remote = true, or use 127.0.0.1'
            )
        return value

    @model_validator(mode="after")
    def _is_encrypted_for_others(self) -> PlatformSettings:
        if not is_loopback(self.listen) and not (self.public_url or "").startswith("https://"):
            raise ValueError(
                f'listen = "{self.listen}" is reachable from other machines, and tokens and cookies would be '
                "sent in clear; put a proxy with TLS in front, and set public_url to its https:// address"
            )
        return self

    @field_validator("trusted_proxy_secret_file")
    @classmethod
    def _both_or_none(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        header = info.data.get("trusted_proxy_header")
        if (value is None) != (header is None):
            raise ValueError("a trusted proxy needs both trusted_proxy_header and trusted_proxy_secret_file")
        return value


class FleetMember(Section):
    """A server that the platform manages."""

    name: str = Field(pattern=rf"^{NAME}$", description="Name of the server on the platform.")
    control: Endpoint = Field(description="Address of its control service, as host:port.")
    scoring: Endpoint | None = Field(
        default=None,
        description="Address of its scoring service, as host:port. Outcomes of reviews are reported there.",
        examples=["127.0.0.1:7700"],
    )
    role: Literal["live", "shadow"] = Field(
        default="live",
        description='"live" answers requests; "shadow" is in the shadow pool (`scorer serve --role shadow`).',
    )
    log: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="Directory of its decision log, if this machine can read it. Default: its subdirectory "
        "of `platform.logs`.",
        examples=["decisions"],
    )
    shipped_as: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="`[ship] server` of its shipper, if its records are read from [tables] under another id "
        "than its name.",
        examples=["checkout-host-1"],
    )

    @model_validator(mode="after")
    def _has_one_log(self) -> FleetMember:
        if self.log is not None and self.shipped_as is not None:
            raise ValueError(
                f'server "{self.name}" has both a log and a table (shipped_as); its records would count '
                "twice: remove one of the two"
            )
        return self


_OUTCOME = {"score": "fraud", "action": "authorised"}
# Chargebacks come within weeks; an authorisation is known at once, its report within the hour.
_MATURED_HOURS = {"score": 1_080.0, "action": 1.0}


class ManagedCheckpoint(Section):
    """Settings of the change requests of one checkpoint."""

    alias: str = Field(
        pattern=rf"^{NAME}@{NAME}$", description="Registry alias that a release moves, as name@alias."
    )
    p99_ms: float = Field(
        default=10.0, gt=0, le=60_000, description="SLA that gates compare times with, in milliseconds."
    )
    slots: int = Field(
        default=2, ge=1, le=64, description="Number of change requests that may be observed at the same time."
    )
    sample: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Share of its requests that are observed, unless an owner has set another one.",
    )
    filter: Annotated[str, AfterValidator(check_filter)] = Field(
        default="",
        description="Filter of these requests: a JSON list of conditions on features that must all hold.",
    )
    pool: bool = Field(
        default=False, description="Whether the shadow pool evaluates instead of the live servers."
    )
    minutes: float = Field(
        default=60.0,
        gt=0,
        le=100_000,
        description="Length of an observation in minutes, unless the change request sets another one.",
    )
    max_minutes: float = Field(
        default=20_160.0, gt=0, le=1_000_000, description="Longest booking, in minutes."
    )
    patience_minutes: float = Field(
        default=60.0,
        gt=0,
        le=100_000,
        description="Minutes that a stage may stay inconclusive beyond its length before it is rolled back.",
    )
    stages: Stages = Field(
        default=(Stage(0.05, 15.0), Stage(0.25, 15.0)),
        description="Stages of the canary: increasing shares of the answers before the full release.",
    )
    outcome: str = Field(
        default="",
        description="Kind of outcome that scores or actions are compared with. Default: fraud for scores, "
        "authorised for actions.",
        examples=["chargeback"],
    )
    matured_hours: float | None = Field(
        default=None,
        ge=0,
        le=100_000,
        description="Age in hours at which a decision's outcome is final. Default: 1080 (45 days) for "
        "scores, 1 for actions.",
        examples=[1080],
    )
    unproven: Literal["exclude", "include"] = Field(default="exclude", description=UNPROVEN_DESCRIPTION)
    gates: Gates = Field(
        default=(),
        description="Gates that a change request must pass. Default: the standard gates (docs/gates.md).",
        examples=[
            [
                {"metric": "exec_p99_us", "against": "sla", "success": "<= 10000", "min_rows": 1000},
                {
                    "metric": "flip_rate",
                    "against": "live",
                    "minus": "aa_control",
                    "success": "<= 0.02 upper95",
                },
            ]
        ],
    )

    segments: SegmentSettings = Field(
        default_factory=SegmentSettings,
        description="Parts of the traffic that reports and backtests show one by one.",
    )
    backtest: BacktestSettings = Field(
        default_factory=BacktestSettings,
        description="The backtest before the shadow: a candidate beside the live bundle on logged decisions.",
    )
    comparison: CheckpointComparison = Field(
        default_factory=CheckpointComparison,
        description="The comparison of versions over time: weeks, cost matrix and label policy.",
    )
    adoption: dict[str, AdoptionTask] = Field(
        default_factory=dict,
        description="Analyses of what adoption is worth (docs/delta-cv.md) by name: table and task.",
        examples=[{"optimiser": {"data": "merchants/values.parquet", "task": "merchants/task.toml"}}],
    )
    review: ReviewSettings = Field(
        default_factory=ReviewSettings,
        description="The queue of the decisions that reviewers decide.",
    )

    def outcome_of(self, kind: str) -> str:
        """Return the kind of outcome that counts for a kind of bundle, `score` or `action`."""
        return self.outcome or _OUTCOME[kind]

    def matures(self, kind: str) -> timedelta:
        """Return how old a decision is once its outcome is final."""
        return timedelta(hours=_MATURED_HOURS[kind] if self.matured_hours is None else self.matured_hours)

    @field_validator("max_minutes")
    @classmethod
    def _holds_the_usual(cls, value: float, info: ValidationInfo) -> float:
        usual = info.data.get("minutes", 0.0)
        if value < usual:
            raise ValueError(f"{value:g} is less than minutes ({usual:g}); raise it, or lower minutes")
        return value


class PlatformFile(Section):
    """All settings of the platform."""

    platform: PlatformSettings = Field(default_factory=PlatformSettings)
    web: WebSettings = Field(default_factory=WebSettings)
    builds: BuildSettings = Field(default_factory=BuildSettings)
    oidc: OidcSettings = Field(default_factory=OidcSettings)
    fleet_tls: ClientTlsSettings = Field(default_factory=ClientTlsSettings)
    tables: TableSettings = Field(default_factory=TableSettings)
    drift: DriftSettings = Field(default_factory=DriftSettings)
    agents: AgentSettings = Field(default_factory=AgentSettings)
    fleet: Members = Field(default=(), description="The servers that the platform manages.")
    discovery: Groups = Field(
        default=(), description="Servers that the platform finds by a DNS name or in Kubernetes, by group."
    )
    checkpoints: dict[CheckpointName, ManagedCheckpoint] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits_together(self) -> PlatformFile:
        names = [member.name for member in self.fleet]
        controls = [member.control for member in self.fleet]
        # A log has one writer. Read under two names, its records would count twice.
        logs = [str(member.log) for member in self.fleet if member.log is not None]
        ids = [member.shipped_as for member in self.fleet if member.shipped_as is not None]
        if ids and not self.tables.urls:
            raise ValueError(
                f'fleet: a server has shipped_as = "{ids[0]}", but [tables] has no urls; add one'
            )
        if ids:
            # A server without the setting has shipped under its name.
            ids += [one.name for one in self.fleet if one.shipped_as is None and one.log is None]
        for what, values in (("name", names), ("control", controls), ("log", logs), ("shipped_as", ids)):
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(
                    f'fleet: two servers have the {what} "{twice[0]}"; give each a different one'
                )
        groups = [group.name for group in self.discovery]
        if twice := sorted({name for name in groups if groups.count(name) > 1}):
            raise ValueError(f'discovery: two groups are called "{twice[0]}"; give each a different name')
        pool = sorted(name for name, checkpoint in self.checkpoints.items() if checkpoint.pool)
        roles = [*(member.role for member in self.fleet), *(group.role for group in self.discovery)]
        if pool and "shadow" not in roles:
            raise ValueError(
                f'checkpoints."{pool[0]}".pool is true, but no server has role = "shadow"; add one'
            )
        return self

    def replace(self, *, fleet: Sequence[FleetMember], checkpoints: Mapping[str, ManagedCheckpoint]) -> None:
        """Replace the servers and the checkpoints by those of the file and of the database together.

        These two are the only settings that change while the platform runs. A reader gets either the old
        mapping or the new one, because neither is changed itself.
        """
        self.__dict__.update(fleet=tuple(fleet), checkpoints=dict(checkpoints))

    @classmethod
    def load(cls, path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> PlatformFile:
        """Read a settings file.

        Raises:
            InvalidSettingsError: The settings are not valid. It lists every error with its key and line.
        """
        source = SettingsSource.read(path, example="scorer platform config")
        return cls._validated(source, environment)

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        where: str = "platform.toml",
        base: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> PlatformFile:
        """Read settings from text; `where` names it in messages, relative paths start from `base`."""
        return cls._validated(SettingsSource(text, where=where, base=base), environment)

    @classmethod
    def _validated(cls, source: SettingsSource, environment: Mapping[str, str] | None) -> PlatformFile:
        for section in ("platform", "checkpoints"):
            # An absent table still needs the base directory for its default paths.
            source.document.setdefault(section, {})
        return source.validate(
            cls, context={"environment": os.environ if environment is None else environment}
        )


_HEAD = """\
# Settings of `scorer platform serve --config platform.toml`.
# Every key has its default; commented keys are examples.
# Relative paths are relative to the directory of this file.
"""


def example() -> str:
    """Return a complete, commented `platform.toml`."""
    samples = {
        "fleet": {"name": "scorer-1", "control": "127.0.0.1:7701", "log": "decisions"},
        "discovery": {"name": "scorer", "dns": "scorer-control.internal:7701"},
        "checkpoints": {
            "fraud.checkout": {"alias": "fraud-checkout@live"},
            "action.authorise": {"alias": "action-authorise@live"},
        },
    }
    return example_text(PlatformFile, _HEAD, samples)
