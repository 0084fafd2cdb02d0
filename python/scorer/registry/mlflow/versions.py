"""Model versions that are bundles: their tags, and how to search for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scorer.errors import BundleError, RegistryUnavailableError
from scorer.registry.mlflow.rest import MlflowRefusedError, Rest
from scorer.registry.reference import full_digest

DIGEST, KIND, CREATED, BY, BYTES = (
    f"scorer.{key}" for key in ("digest", "kind", "created_at", "pushed_by", "bytes")
)
"""Tags of a model version."""
_NOT_THERE = {"RESOURCE_DOES_NOT_EXIST", "RESOURCE_NOT_FOUND"}
_PAGE = 200
_MAX_PAGES = 1_000
"""Most pages of one list, so that a server whose pages never end cannot hold the caller."""


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A version of a registered model."""

    name: str
    version: str
    tags: Mapping[str, str]
    created_ms: int
    source: str

    @property
    def digest(self) -> str:
        """The bundle's digest, from its tag.

        Raises:
            BundleError: The version has no such tag, so `scorer` did not create it.
        """
        digest = self.tags.get(DIGEST, "")
        if not digest.startswith("sha256:") or full_digest(digest) is None:
            raise BundleError(
                f"version {self.version} of {self.name} in MLflow has no digest in its tag {DIGEST}, so it "
                "is no bundle; push one with `scorer registry push`"
            )
        return digest


def parse(value: Any) -> ModelVersion:
    """Parse a model version from a reply of MLflow."""
    return ModelVersion(
        str(value["name"]),
        str(value["version"]),
        {str(tag["key"]): str(tag.get("value", "")) for tag in value.get("tags", ())},
        int(value.get("creation_timestamp", 0)),
        str(value.get("source", "")),
    )


def by_alias(rest: Rest, name: str, alias: str) -> ModelVersion | None:
    """Return the model version that an alias points to, or None if the alias does not exist."""
    try:
        return parse(rest.get("/registered-models/alias", name=name, alias=alias)["model_version"])
    except MlflowRefusedError as error:
        # MLflow reports a missing alias as an invalid parameter.
        if error.code in _NOT_THERE or error.code == "INVALID_PARAMETER_VALUE":
            return None
        raise
    except (KeyError, TypeError, ValueError, AttributeError):
        raise rest.foreign() from None


def model(rest: Rest, name: str) -> Mapping[str, Any] | None:
    """Return a registered model with its aliases and tags, or None if it does not exist."""
    try:
        found = rest.get("/registered-models/get", name=name).get("registered_model")
    except MlflowRefusedError as error:
        if error.code in _NOT_THERE:
            return None
        raise
    if not isinstance(found, dict):
        raise rest.foreign()
    return found


def models(rest: Rest) -> Iterator[Mapping[str, Any]]:
    """Yield all registered models, with their tags, as MLflow's REST API returns them."""
    yield from _pages(rest, "/registered-models/search", "registered_models")


def bundles(rest: Rest, *, name: str | None = None, prefix: str = "sha256:") -> list[ModelVersion]:
    """Return the model versions that are bundles, newest first.

    If several versions have the same digest, only the newest is returned.

    Args:
        rest: The server.
        name: Return only versions of this registered model.
        prefix: Return only digests that begin with this text.
    """
    found = _search(rest, f"tags.`{DIGEST}` LIKE '{prefix}%'" + (f" AND name = '{name}'" if name else ""))
    found.sort(key=lambda v: (v.created_ms, v.name, len(v.version), v.version), reverse=True)
    newest: dict[str, ModelVersion] = {}
    for version in found:
        if full_digest(version.tags.get(DIGEST, "")) is not None:
            newest.setdefault(version.digest, version)
    return list(newest.values())


def every(rest: Rest, name: str) -> list[ModelVersion]:
    """Return all versions of a registered model, including those that are not bundles."""
    return _search(rest, f"name = '{name}'")


def _search(rest: Rest, query: str) -> list[ModelVersion]:
    try:
        return [
            parse(value) for value in _pages(rest, "/model-versions/search", "model_versions", filter=query)
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise rest.foreign() from None


def _pages(rest: Rest, path: str, key: str, **query: str) -> Iterator[Mapping[str, Any]]:
    token = ""
    for _ in range(_MAX_PAGES):
        page = rest.get(path, max_results=_PAGE, **query, **({"page_token": token} if token else {}))
        found = page.get(key, [])
        if not isinstance(found, list):
            raise rest.foreign()
        yield from found
        token = str(page.get("next_page_token") or "")
        if not token or not found:
            return
    raise RegistryUnavailableError(
        f"MLflow at {rest.url} returned more than {_MAX_PAGES} pages of one list; check the server"
    )
