"""The registry: content-addressed bundles, and aliases with their history.

The embedded engine is a directory with one SQLite file. Other engines implement
``RegistryBackend``; the server needs the smaller ``BundleSource`` only.
"""

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
]
