"""The versions that are compared: bundles with what their lineage states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from scorer.bundle.models import Action, Feature
from scorer.learn.comparison.settings import MOST_VERSIONS
from scorer.learn.errors import DataError

if TYPE_CHECKING:
    from scorer.bundle import Bundle
    from scorer.log import BundleShelf

_ALGORITHMS: Final = ("algorithm", "model", "booster")
_MOST_PARAMETERS: Final = 40
_LEAST_DIGITS: Final = 4


@dataclass(frozen=True)
class VersionFacts:
    """One version.

    Attributes:
        digest: Of the bundle.
        name: Name of the bundle.
        created: When it was built, ISO 8601.
        algorithm: By the parameters of its lineage, or the form of its model.
        data: Digest of the training data.
        parameters: Hyperparameters by name, as texts.
        refused: Why it is not compared; empty if it is.
    """

    digest: str
    name: str
    created: str = ""
    algorithm: str = ""
    data: str = ""
    parameters: Mapping[str, str] | None = None
    refused: str = ""


@dataclass(frozen=True)
class OpenVersion:
    """A version with the layouts of its rows.

    Attributes:
        facts: What it is.
        features: Features of requests.
        actions: The catalogue; empty for a score bundle.
    """

    facts: VersionFacts
    features: tuple[Feature, ...]
    actions: tuple[Action, ...]


def full_digests(given: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the digests that begin with the given digits.

    Args:
        given: Digests, or at least four digits of each, with or without `sha256:`.
        known: Digests of the bundles that were found.

    Raises:
        DataError: Digits are too few, or fit to no bundle or to several.
    """
    found = []
    for one in given:
        digits = one.removeprefix("sha256:").lower()
        fitting = [digest for digest in known if digest.removeprefix("sha256:").startswith(digits)]
        if len(digits) < _LEAST_DIGITS:
            raise DataError(f'"{one}" is too short for a version; give at least four digits of its digest')
        if len(fitting) != 1:
            what = "no bundle" if not fitting else f"{len(fitting)} bundles"
            raise DataError(f'"{one}" is the beginning of {what}; `scorer registry list` lists digests')
        found.append(fitting[0])
    return tuple(found)


def open_versions(shelf: BundleShelf, digests: Sequence[str], kind: str) -> list[OpenVersion]:
    """Return the versions with what their lineage states. One that cannot be compared has the reason.

    Args:
        shelf: The bundles.
        digests: Of the versions, from the oldest to the newest as they shall be shown.
        kind: Kind of the checkpoint's bundles, `score` or `action`.

    Raises:
        DataError: There are no versions, too many, or one is given twice.
    """
    if not digests:
        raise DataError("there are no versions to compare; name at least one bundle")
    if len(digests) > MOST_VERSIONS:
        raise DataError(f"{len(digests)} versions are too many; compare at most {MOST_VERSIONS} at a time")
    twice = sorted({one for one in digests if list(digests).count(one) > 1})
    if twice:
        raise DataError(f"{twice[0]} is given twice; name each version once")
    return [_opened(shelf, digest, kind) for digest in digests]


def _opened(shelf: BundleShelf, digest: str, kind: str) -> OpenVersion:
    bundle = shelf.get(digest) if digest in shelf.digests else None
    if bundle is None:
        facts = VersionFacts(digest, digest[7:19], refused="the bundle was not found; add its registry")
        return OpenVersion(facts, (), ())
    manifest = shelf.manifest(digest)
    lineage = manifest.lineage
    refused = "" if bundle.kind == kind else f"it is of kind {bundle.kind}, the checkpoint of kind {kind}"
    parameters = {name: str(value)[:200] for name, value in _flat(lineage.parameters)}
    facts = VersionFacts(
        digest,
        bundle.name,
        manifest.created_at,
        _algorithm(parameters, bundle),
        lineage.data_digest,
        dict(list(parameters.items())[:_MOST_PARAMETERS]),
        refused,
    )
    return OpenVersion(facts, tuple(shelf.schema(digest).features), tuple(shelf.catalogue(digest)))


def _algorithm(parameters: Mapping[str, str], bundle: Bundle) -> str:
    for name in _ALGORITHMS:
        if parameters.get(name):
            return parameters[name]
    if bundle.nets:
        return "ONNX"
    return f"forest of {sum(one['trees'] for one in bundle.forests):,} trees"


def _flat(values: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{before}{name}.")
        else:
            found.append((f"{before}{name}", value))
    return found
