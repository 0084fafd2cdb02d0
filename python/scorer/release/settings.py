"""`platform.toml`: what `scorer platform serve` runs on, its types, limits and defaults.

The commented example is printed from these descriptions (`scorer platform config`), so it cannot drift.
Nothing here opens a port or touches the disk beyond the file (and the secrets' files that it names).
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Mapping
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
from scorer.log.proof import UNPROVEN_DESCRIPTION
from scorer.release.gates.grammar import Gates
from scorer.release.model import Stage
from scorer.release.oidc_settings import OidcSettings
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
    """Checks the ``host:port`` of a server elsewhere; a name is resolved when it is called."""
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
    """A URL; a file's name means SQLite. `$NAME` stands for an environment variable, for passwords."""
    if not isinstance(value, str):
        return value
    context = info.context or {}
    if variable := _VARIABLE.fullmatch(value):
        name = variable[1]
        value = context.get("environment", os.environ).get(name, "")
        if not value:
            raise ValueError(f"the environment variable {name} is not set; set it to the database's URL")
    scheme, separator, rest = value.partition("://")
    if separator and scheme.startswith("postgresql"):
        return f"postgresql+psycopg://{rest}"
    if separator and scheme != "sqlite":
        # The value may hold a password: the message names the scheme alone.
        raise ValueError(
            f'"{scheme}://" is no database that the platform keeps its state in; write '
            '"sqlite:///platform.sqlite" or "postgresql://user@host/name"'
        )
    path = rest.removeprefix("/") if separator else value
    if not path or path == ":memory:":
        raise ValueError('the state must outlive the process: name a file, "sqlite:///platform.sqlite"')
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
        raise ValueError('the registry is a directory or "mlflow:http://host:port"')
    return str(Path((info.context or {}).get("base", Path.cwd())) / Path(value).expanduser())


def check_filter(text: str) -> str:
    """Refuses a lane's filter that is not a JSON list of conditions; empty means every request."""
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
    """One step of a canary."""

    share: float = Field(gt=0, lt=1, description="Of the answers.")
    minutes: float = Field(gt=0, le=100_000, description="How long at least, and until its gates pass.")


def _stages(value: Sequence[StageSettings]) -> tuple[Stage, ...]:
    shares = [stage.share for stage in value]
    if shares != sorted(set(shares)):
        raise ValueError(
            f"shares {shares} do not rise; each stage gives the new bundle more than the one before"
        )
    return tuple(Stage(stage.share, stage.minutes) for stage in value)


if TYPE_CHECKING:
    # What a reader of the settings gets; the file's tables are checked as sections first.
    Endpoint = str
    Stages = tuple[Stage, ...]
    Members = tuple["FleetMember", ...]
else:
    Endpoint = Annotated[str, BeforeValidator(_endpoint)]
    Stages = Annotated[tuple[StageSettings, ...], BeforeValidator(_as_tuple), AfterValidator(_stages)]
    Members = Annotated[tuple["FleetMember", ...], BeforeValidator(_as_tuple)]


# --- the file ---


class PlatformSettings(Section):
    """The process: where it listens and where it keeps its state."""

    allow_remote: bool = Field(
        default=False,
        description="Lets `listen` name an address that other machines reach. There is no TLS in "
        "the process: "
        "put a proxy in front.",
    )
    listen: Address = Field(
        default="127.0.0.1:7710", description="Pages and REST over HTTP. Port 0: any free one."
    )
    database: Annotated[str, BeforeValidator(_database)] = Field(
        default="sqlite:///platform.sqlite",
        validate_default=True,
        description="The state: sqlite:///FILE or postgresql://user@host/name. `$NAME` is read from the "
        "environment, where a password belongs.",
    )
    data_dir: Directory = Field(
        default=Path("platform"),
        validate_default=True,
        description="Uploads under way, verified copies of bundles, kept reports. May be on "
        "this machine only.",
    )
    registry: Annotated[str, BeforeValidator(_registry)] = Field(
        default="registry",
        validate_default=True,
        description="Where bundles are stored and aliases point: a directory, or "
        "mlflow:http://host:port. The "
        "servers follow the same one.",
    )
    name: str = Field(
        default="platform",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="What servers name as the manager of their checkpoints; the same for all processes on "
        "one database, and another one for every other platform.",
    )
    reach_seconds: float = Field(
        default=5.0,
        gt=0,
        le=60,
        description="Longest time that a rollback, or a round of the pipeline, waits for one server; one "
        "that takes longer is retried.",
    )
    tick_ms: int = Field(
        default=500, ge=10, le=60_000, description="How often change requests are moved along."
    )
    public_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^/\s?#@]+(/[^\s?#]*)?$",
        description="What messages and links begin with. Default: the address listened on.",
        examples=["https://scorer.example.com"],
    )
    session_hours: float = Field(
        default=12.0, gt=0, le=720, description="How long somebody stays signed in at a browser."
    )
    approval_days: float = Field(
        default=7.0,
        gt=0,
        le=365,
        description="A RELEASE that nobody has approved after so many days expires.",
    )
    upload_mb: int = Field(
        default=512, ge=1, le=65_536, description="Largest bundle that is taken in, unpacked."
    )
    learning: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="The workspace of `scorer learn`, whose generations and reports the pages show.",
        examples=["learning"],
    )
    notification_networks: Networks = Field(
        default=(),
        description="Networks with private addresses, or loopback, that notifications may be sent to. "
        "Default: public addresses only. Link-local addresses are never sent to.",
        examples=[["10.20.0.0/16"]],
    )
    trusted_proxy_header: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z][A-Za-z0-9-]{0,63}$",
        description="A header in which a proxy that has checked it names the user. Believed only "
        "together with "
        "the secret.",
        examples=["X-Forwarded-User"],
    )
    trusted_proxy_secret_file: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="The file with the secret that the proxy sends as X-Proxy-Secret.",
        examples=["proxy.secret"],
    )

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
                f'listen = "{self.listen}" is for other machines, and tokens and cookies would go there in '
                "clear; put a proxy with TLS in front, and set public_url to its https:// address"
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
    """A server that the platform leads."""

    name: str = Field(pattern=rf"^{NAME}$", description="What it is called here.")
    control: Endpoint = Field(description="host:port of its control service.")
    role: Literal["live", "shadow"] = Field(
        default="live",
        description='"live" answers shoppers; "shadow" is the pool (`scorer serve --role shadow`).',
    )
    log: OptionalPath = Field(
        default=None,
        validate_default=True,
        description="Its decision log, where this machine can read it; what reports are made of.",
        examples=["decisions"],
    )


class ManagedCheckpoint(Section):
    """What happens at a checkpoint between a change request and a release."""

    alias: str = Field(
        pattern=rf"^{NAME}@{NAME}$", description="The registry alias that a release moves: name@alias."
    )
    p99_ms: float = Field(
        default=10.0, gt=0, le=60_000, description="The promise that gates judge times against, milliseconds."
    )
    slots: int = Field(default=2, ge=1, le=64, description="How many changes may be in its shadow at once.")
    sample: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Share of its requests that the shadow sees, until somebody changes it.",
    )
    filter: Annotated[str, AfterValidator(check_filter)] = Field(
        default="",
        description="Which of them: a JSON list of conditions on features, all of which must hold.",
    )
    pool: bool = Field(
        default=False, description="The shadow is evaluated in the pool rather than in the live servers."
    )
    minutes: float = Field(
        default=60.0,
        gt=0,
        le=100_000,
        description="How long a change is in the shadow unless it says otherwise.",
    )
    max_minutes: float = Field(
        default=20_160.0, gt=0, le=1_000_000, description="The longest booking that is taken."
    )
    patience_minutes: float = Field(
        default=60.0,
        gt=0,
        le=100_000,
        description="How much longer a stage may stay inconclusive before it is rolled back.",
    )
    stages: Stages = Field(
        default=(Stage(0.05, 15.0), Stage(0.25, 15.0)),
        description="The canary: shares of the answers, one after the other, before all of them.",
    )
    outcome: str = Field(
        default="",
        description="The kind of outcome that judges scores or actions. Default: fraud for scores, "
        "authorised for actions.",
        examples=["chargeback"],
    )
    matured_hours: float | None = Field(
        default=None,
        ge=0,
        le=100_000,
        description="A decision this old has the outcome that it will have. Default: 1080 (45 days) for "
        "scores, 1 for actions.",
        examples=[1080],
    )
    unproven: Literal["exclude", "include"] = Field(default="exclude", description=UNPROVEN_DESCRIPTION)
    gates: Gates = Field(
        default=(),
        description="What a change must pass. None: the standard gates (docs/gates.md).",
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

    @field_validator("max_minutes")
    @classmethod
    def _holds_the_usual(cls, value: float, info: ValidationInfo) -> float:
        usual = info.data.get("minutes", 0.0)
        if value < usual:
            raise ValueError(f"{value:g} is less than minutes ({usual:g}); raise it, or shorten minutes")
        return value


class PlatformFile(Section):
    """Everything that the platform needs to know."""

    platform: PlatformSettings = Field(default_factory=PlatformSettings)
    web: WebSettings = Field(default_factory=WebSettings)
    oidc: OidcSettings = Field(default_factory=OidcSettings)
    fleet_tls: ClientTlsSettings = Field(default_factory=ClientTlsSettings)
    fleet: Members = Field(default=(), description="The servers that the platform leads.")
    checkpoints: dict[CheckpointName, ManagedCheckpoint] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits_together(self) -> PlatformFile:
        names = [member.name for member in self.fleet]
        controls = [member.control for member in self.fleet]
        for what, values in (("name", names), ("control", controls)):
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f'fleet: two servers have the {what} "{twice[0]}"; each has its own')
        pool = sorted(name for name, checkpoint in self.checkpoints.items() if checkpoint.pool)
        if pool and not any(member.role == "shadow" for member in self.fleet):
            raise ValueError(
                f'checkpoints."{pool[0]}".pool is true and no server of the fleet has role = '
                f'"shadow"; add one'
            )
        return self

    @classmethod
    def load(cls, path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> PlatformFile:
        """Read a settings file.

        Raises:
            InvalidSettingsError: With every fault found, each with its key and line.
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
# Every key is at its default; what is commented out is an example.
# Relative paths start from this file's folder.
"""


def example() -> str:
    """Return a complete, commented `platform.toml`."""
    samples = {
        "fleet": {"name": "scorer-1", "control": "127.0.0.1:7701", "log": "decisions"},
        "checkpoints": {
            "fraud.checkout": {"alias": "fraud-checkout@live"},
            "action.authorise": {"alias": "action-authorise@live"},
        },
    }
    return example_text(PlatformFile, _HEAD, samples)
