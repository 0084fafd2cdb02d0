"""The registry: content-addressed bundles, and aliases with their history.

The embedded engine is a directory with one SQLite file; `scorer.registry.mlflow` is one over an
MLflow server. Engines implement ``RegistryBackend``; the server needs the smaller ``BundleSource`` only.
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
    """The engine that a location means: ``mlflow:http://host:port``, or a directory.

    Args:
        location: Where the registry is.
    """
    if str(location).startswith("mlflow:"):
        from scorer.registry.mlflow import MlflowRegistry

        return MlflowRegistry(str(location))
    return Registry(Path(location))
