"""The declaration of a feature set, with its rules.

The data plane has a second parser of the canonical form, in the crate `scorer-features`, with the same rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from scorer.durations import shortest_duration
from scorer.features.durations import Seconds, seconds

Aggregate = Literal[
    "count",
    "sum",
    "mean",
    "min",
    "max",
    "distinct",
    "seconds_since_last",
    "seconds_since_first",
    "decayed_count",
    "decayed_sum",
]
OF_NUMBER = frozenset({"sum", "mean", "min", "max", "decayed_sum"})
DECAYED = frozenset({"decayed_count", "decayed_sum"})
ZERO_WITHOUT_EVENTS = frozenset({"count", "sum", "distinct", "decayed_count", "decayed_sum"})
"""Aggregates whose value is 0 for a key without events. The others then have the feature's default."""

MAX_SECONDS = 3650 * 86_400
MAX_TILES = 4096
MAX_FIELDS = 64
MAX_VALUES = 8
MAX_ENTITIES = 16
TILES = (86_400, 21_600, 3600, 900, 300, 60)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _listed(given: object) -> object:
    return tuple(given) if isinstance(given, list) else given


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
_Length = Annotated[Seconds, Field(ge=1, le=MAX_SECONDS)]


class EventKind(_Model):
    """The declaration of one kind of events."""

    entities: Names
    """Names of entities. An event has at least one key, and at most one of each."""
    numbers: Names = ()
    """Names of number fields."""
    texts: Names = ()
    """Names of text fields."""
    accept_late: _Length
    """Greatest age of an event at its receipt, and how long its id is remembered, in seconds."""

    @model_validator(mode="after")
    def _names(self) -> EventKind:
        names = (*self.entities, *self.numbers, *self.texts)
        if not self.entities:
            raise ValueError("entities: the kind of events has none; name at least one")
        if len(names) > MAX_FIELDS:
            raise ValueError(
                f"the kind of events has more than {MAX_FIELDS} entities and fields; remove some"
            )
        for name in names:
            check_name(name)
            if names.count(name) > 1:
                raise ValueError(f'"{name}" occurs twice; rename an entity or a field')
        return self


class DeclaredFeature(_Model):
    """A feature: an aggregate of the events of one entity, or the ratio of two of them."""

    name: str
    text: str = ""
    ratio: Annotated[tuple[str, str] | None, BeforeValidator(_listed)] = None
    """Names of the numerator and the denominator. A ratio has no other fields than name, text and default."""
    entity: str | None = None
    event: str | None = None
    aggregate: Aggregate | None = None
    of: str | None = None
    """The number field, text field or entity that is aggregated."""
    window: _Length | None = None
    """Length of the window in seconds."""
    half_life: _Length | None = None
    """Half-life of a decayed aggregate in seconds."""
    delay: Annotated[Seconds, Field(ge=0, le=MAX_SECONDS)] = 0
    """Age in seconds from which on events are counted."""
    tile: Annotated[Seconds, Field(ge=0)] | None = None
    """Length of a tile in seconds; None only for decayed aggregates and ratios."""
    where: dict[str, Annotated[tuple[str, ...], BeforeValidator(_listed)]] = {}
    """Allowed values by text field; all must hold."""
    default: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Value if nothing is known. None is a missing value."""

    @model_validator(mode="before")
    @classmethod
    def _default_tile(cls, given: object) -> object:
        if not isinstance(given, dict) or given.get("tile") is not None or given.get("window") is None:
            return given
        try:
            length = seconds(given["window"])
        except ValueError:
            return given  # The field's own check reports it.
        return {**given, "tile": next((tile for tile in TILES if tile <= length / 24), 60)}

    @model_validator(mode="after")
    def _fields(self) -> DeclaredFeature:
        check_name(self.name)
        given = {"entity", "event", "aggregate", "of", "window", "half_life", "tile"}
        stated = sorted(name for name in given if getattr(self, name) is not None)
        if self.ratio is not None:
            if stated or self.delay or self.where:
                raise ValueError("a ratio has only name, text, ratio and default; remove the other keys")
            return self
        if self.entity is None or self.event is None or self.aggregate is None:
            raise ValueError("it needs entity, event and aggregate, or ratio; add them")
        if self.aggregate in DECAYED:
            if self.half_life is None or self.window is not None:
                raise ValueError(f"{self.aggregate} has half_life and no window; correct the keys")
            if self.delay or self.tile:
                raise ValueError(f"{self.aggregate} has no delay and no tile; remove them")
        else:
            self._check_tiles()
        if any(not 1 <= len(values) <= MAX_VALUES for values in self.where.values()):
            raise ValueError(f"where: a field has 1 to {MAX_VALUES} values; change the list")
        return self

    def _check_tiles(self) -> None:
        if self.window is None or self.half_life is not None:
            raise ValueError(f"{self.aggregate} has window and no half_life; correct the keys")
        tile = self.tile or 0
        if tile < 1 or self.window % tile or self.delay % tile:
            raise ValueError(
                f"window and delay are multiples of the tile, {shortest_duration(tile)}; change them, "
                "or set tile"
            )
        if self.window // tile > MAX_TILES:
            raise ValueError(f"the window has more than {MAX_TILES} tiles; set a longer tile")

    @property
    def is_decayed(self) -> bool:
        """Whether the weight of an event halves with its age."""
        return self.aggregate in DECAYED

    @property
    def tiles(self) -> int:
        """Number of tiles of the window."""
        return (self.window or 0) // (self.tile or 1)

    @property
    def missing(self) -> float:
        """The default, with NaN for a missing value."""
        return math.nan if self.default is None else self.default


class FeatureSet(_Model):
    """The declaration of a feature set."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}$")]
    version: Annotated[int, Field(ge=0, lt=2**63)]
    owner: str = ""
    text: str = ""
    events: Annotated[dict[str, EventKind], Field(min_length=1, max_length=16)]
    features: Annotated[
        tuple[DeclaredFeature, ...], BeforeValidator(_listed), Field(min_length=1, max_length=256)
    ]

    @model_validator(mode="after")
    def _rules(self) -> FeatureSet:
        for kind in self.events:
            check_name(kind)
        if len(self.entities) > MAX_ENTITIES:
            raise ValueError(
                f"{len(self.entities)} entities are declared; at most {MAX_ENTITIES} are allowed"
            )
        names = [feature.name for feature in self.features]
        for feature in self.features:
            for rule in self._broken(feature):
                raise ValueError(f'feature "{feature.name}": {rule}')
            if names.count(feature.name) > 1:
                raise ValueError(f'feature "{feature.name}": the name occurs twice; rename one')
        return self

    def _broken(self, feature: DeclaredFeature) -> Iterator[str]:
        if feature.ratio is not None:
            for part in feature.ratio:
                if all(other.name != part or other.ratio for other in self.features):
                    yield f'ratio: "{part}" is no feature of the set that aggregates events; correct the name'
            return
        event = self.events.get(feature.event or "")
        if event is None:
            yield f'event: "{feature.event}" is not declared; add [events.{feature.event}]'
            return
        if feature.entity not in event.entities:
            yield f'entity: events "{feature.event}" have no entity "{feature.entity}"; correct the name'
        aggregate, of = feature.aggregate or "", feature.of
        if aggregate in OF_NUMBER:
            if of not in event.numbers:
                yield f'of: {aggregate} is of a number field of events "{feature.event}"; correct the name'
        elif aggregate == "distinct":
            if of not in event.texts and (of not in event.entities or of == feature.entity):
                yield f'of: distinct is of a text field or another entity of events "{feature.event}"'
        elif of is not None:
            yield f"of: {aggregate} is of no field; remove the key"
        for field in feature.where:
            if field not in event.texts:
                yield f'where: events "{feature.event}" have no text field "{field}"; correct the name'

    @property
    def entities(self) -> list[str]:
        """Names of all entities, sorted."""
        return sorted({entity for event in self.events.values() for entity in event.entities})

    @property
    def label(self) -> str:
        """Name and version, as name@version."""
        return f"{self.name}@{self.version}"

    def feature(self, name: str) -> DeclaredFeature:
        """Return a feature by name. Raises KeyError."""
        return next((feature for feature in self.features if feature.name == name), None) or _absent(name)

    def needs(self, feature: DeclaredFeature) -> list[str]:
        """Return the entities whose keys a feature needs."""
        if feature.ratio is not None:
            return sorted({self.feature(part).entity or "" for part in feature.ratio})
        return [feature.entity or ""]


def _absent(name: str) -> DeclaredFeature:
    raise KeyError(name)


def check_name(name: str) -> None:
    """Raise ValueError if a name of a feature, an event, an entity or a field is not allowed."""
    if not _NAME.fullmatch(name):
        raise ValueError(f'"{name}": a name is 1 to 64 of a-z, A-Z, 0-9, _, - and .; rename it')
