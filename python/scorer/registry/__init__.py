"""The registry: content-addressed bundles, and aliases with their history.

There are two engines. The embedded engine is a directory with one SQLite file. `scorer.registry.mlflow`
stores bundles on an MLflow server. Both implement ``RegistryBackend``; the server uses only its smaller
part ``BundleSource``.
"""

from __future__ import annotations

import os
from pathlib import Path

from scorer.registry.base import (
    AliasChange,
    BundleDetails,
    BundleRecord,
    BundleSource,
    RegistryBackend,
    Resolved,
)
from scorer.registry.embedded import Registry

__all__ = [
    "AliasChange",
    "BundleDetails",
    "BundleRecord",
    "BundleSource",
    "Registry",
    "RegistryBackend",
    "Resolved",
    "open_registry",
]


def open_registry(location: str | os.PathLike[str]) -> RegistryBackend:
    """Open the registry at a location.

    Args:
        location: ``mlflow:http://host:port`` for an MLflow server; anything else is the path of a directory.

    Returns:
        The registry. The directory of an embedded registry need not exist: the first push creates it.

    Raises:
        InvalidReferenceError: The text after ``mlflow:`` is not a valid address.
    """
    if str(location).startswith("mlflow:"):
        from scorer.registry.mlflow import MlflowRegistry

        return MlflowRegistry(str(location))
    return Registry(Path(location))
