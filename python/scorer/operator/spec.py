"""The two custom resources as types, with a reason in one line for every value that is refused.

The schemas in `deploy/kubernetes/operator/crds.yaml` refuse most mistakes when an object is written. These
types refuse the rest, and mistakes in objects that were written under an older schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from scorer.config.fields import NAME, Section
from scorer.config.model import Fallback
from scorer.config.problems import describe, dotted
from scorer.errors import OperatorError
from scorer.operator.names import Object

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|Ki|M|Mi|G|Gi|T|Ti)?")
_UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def _matches(pattern: str, rule: str) -> AfterValidator:
    """Return a validator that refuses texts which do not match a pattern, with the rule as the reason."""

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(f'"{value[:60]}" {rule}')
        return value

    return AfterValidator(check)


_QUANTITY_RULE = "is not a quantity; write a number such as 2, 500m or 8Gi"
_OBJECT_RULE = "is not the name of an object; use lower-case letters, digits, '.' and '-'"
_SERVER_RULE = "is not the name of a server; use at most 40 lower-case letters, digits and '-'"

Quantity = Annotated[str, _matches(_QUANTITY.pattern, _QUANTITY_RULE)]
ObjectName = Annotated[str, _matches(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", _OBJECT_RULE)]
ServerName = Annotated[str, _matches(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", _SERVER_RULE)]
Image = Annotated[str, _matches(r"\S{1,512}", "is not an image; write it as name:version, without spaces")]


def amount(quantity: str) -> float:
    """Return a quantity such as `500m` or `8Gi` as a number.

    Raises:
        OperatorError: The text is not a quantity.
    """
    parts = _QUANTITY.fullmatch(quantity)
    if parts is None:
        raise OperatorError(f'"{quantity}" {_QUANTITY_RULE}')
    return float(parts[1]) * _UNITS[parts[2] or ""]


class _Part(Section):
    """Part of a spec. Its keys are in camel case, as is usual in Kubernetes."""

    model_config = ConfigDict(alias_generator=to_camel)


class Requests(_Part):
    """Resources that the scheduler reserves for a container."""

    cpu: Quantity = "2"
    memory: Quantity = "256Mi"


class Limits(_Part):
    """Limits of a container. There is none for the CPU, because a throttled server misses its SLA."""

    memory: Quantity = "512Mi"


class Resources(_Part):
    """Requests and limits of a container."""

    requests: Requests = Field(default_factory=Requests)
    limits: Limits = Field(default_factory=Limits)

    @model_validator(mode="after")
    def _limit_holds_the_request(self) -> Resources:
        if amount(self.limits.memory) < amount(self.requests.memory):
            raise ValueError(
                f"limits.memory = {self.limits.memory} is below requests.memory = {self.requests.memory}; "
                "raise the limit"
            )
        return self


class Autoscaling(_Part):
    """Bounds and targets of the number of replicas."""

    min_replicas: int = Field(default=2, ge=1, le=1000)
    max_replicas: int = Field(ge=1, le=1000)
    pressure: Quantity = "500m"
    """Average of `scorer_pressure` above which replicas are added."""
    cpu_percent: int = Field(default=60, ge=1, le=100)
    """Average CPU use, in percent of the request, above which replicas are added."""

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Autoscaling:
        if self.max_replicas < self.min_replicas:
            raise ValueError(
                f"maxReplicas = {self.max_replicas} is below minReplicas = {self.min_replicas}; raise it"
            )
        return self


class Storage(_Part):
    """The volume of each replica, which holds its decision log and its last known good bundles."""

    size: Quantity = "50Gi"
    storage_class_name: ObjectName | None = None
    when_deleted: Literal["Retain", "DeleteShipped", "Discard"] = "Retain"
    """What happens to the volumes when the server is deleted."""


class Issuer(_Part):
    """The issuer of certificates for cert-manager."""

    name: ObjectName = "scorer"
    kind: Literal["Issuer", "ClusterIssuer"] = "Issuer"


class Tls(_Part):
    """Origin of the server's certificate."""

    secret_name: ObjectName | None = None
    """An existing Secret. Without it, cert-manager writes the Secret `<server>-tls`."""
    issuer: Issuer = Field(default_factory=Issuer)


class RegistryVolume(_Part):
    """The volume claim of the registry of bundles, which the servers mount read-only."""

    claim_name: ObjectName = "scorer-registry"


class ShipResources(Resources):
    """Requests and limits of the shipper."""

    requests: Requests = Field(default_factory=lambda: Requests(cpu="250m", memory="512Mi"))
    limits: Limits = Field(default_factory=lambda: Limits(memory="1Gi"))


class Ship(_Part):
    """The shipper of each replica, a sidecar."""

    image: Image
    settings: dict[str, Any] = Field(default={}, max_length=16)
    """Tables of `ship.toml`."""
    credentials_secret: ObjectName | None = None
    """Secret whose keys become environment variables of the shipper."""
    resources: ShipResources = Field(default_factory=ShipResources)
    deadline_seconds: int = Field(default=1800, ge=60, le=86_400)
    """Longest time in which a Job ships what the volume of a stopped replica holds."""


class ServerSpec(_Part):
    """The spec of a `ScorerServer`."""

    image: Image
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    role: Literal["live", "shadow"] = "live"
    replicas: int | None = Field(default=None, ge=1, le=1000)
    autoscaling: Autoscaling | None = None
    resources: Resources = Field(default_factory=Resources)
    storage: Storage = Field(default_factory=Storage)
    registry: RegistryVolume = Field(default_factory=RegistryVolume)
    tls: Tls = Field(default_factory=Tls)
    trust_domain: ObjectName = "scorer.internal"
    settings: dict[str, Any] = Field(default={}, max_length=16)
    """Tables of `scorer.toml`, without what the operator sets."""
    ship: Ship | None = None

    @model_validator(mode="after")
    def _one_way_to_scale(self) -> ServerSpec:
        if self.replicas is not None and self.autoscaling is not None:
            raise ValueError("replicas and autoscaling are both set; remove one of them")
        if self.storage.when_deleted == "DeleteShipped" and self.ship is None:
            raise ValueError(
                "storage.whenDeleted is DeleteShipped and ship is not set, so nothing is shipped; set ship, "
                "or use Retain"
            )
        return self

    @property
    def fixed_replicas(self) -> int:
        """Number of replicas without autoscaling."""
        return 2 if self.replicas is None else self.replicas


class CheckpointSpec(_Part):
    """The spec of a `ScorerCheckpoint`."""

    server: ServerName
    checkpoint: Annotated[str, StringConstraints(pattern=rf"^{NAME}$")]
    kind: Literal["score", "action"]
    alias: Annotated[str, StringConstraints(pattern=rf"^{NAME}@{NAME}$")] | None = None
    p99_ms: float | None = Field(default=None, gt=0, le=60_000)
    fallback: Fallback | None = None
    settings: dict[str, Any] = Field(default={}, max_length=32)
    """Further keys of `[checkpoints."NAME"]` of `scorer.toml`."""


M = TypeVar("M", bound=_Part)


def read(model: type[M], resource: Object) -> M:
    """Return the spec of a custom resource.

    Args:
        model: The type of the spec.
        resource: The object.

    Raises:
        OperatorError: A value is refused. The message has one line.
    """
    try:
        return model.model_validate(resource.get("spec", {}))
    except ValidationError as error:
        problems = []
        for detail in error.errors(include_url=False):
            key, reason = describe(detail, model)
            problems.append(f"{dotted(('spec', *key))}: {reason}")
        raise OperatorError(one_line(problems)) from None


def one_line(problems: Iterable[str]) -> str:
    """Return the first of several problems, and the number of further ones, in one line."""
    first, *others = [" ".join(problem.split()) for problem in problems]
    return f"{first} (and {len(others)} more)" if others else first
