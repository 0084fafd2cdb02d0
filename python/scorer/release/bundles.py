"""Bundles as the platform takes them in and shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from scorer.release.model import Actor


@dataclass(frozen=True, slots=True)
class BundleInfo:
    """A bundle in the registry."""

    digest: str
    name: str
    kind: str
    """`score` or `action`."""
    project: str
    bytes: int
    uploaded_by: str
    uploaded_at: datetime | None
    changes: tuple[str, ...] = ()
    """Change requests about it, newest first."""


@dataclass(frozen=True, slots=True)
class BundleDetail:
    """What is in it, and where it came from."""

    info: BundleInfo
    manifest: Mapping[str, Any]
    lineage: Mapping[str, Any]
    reference: Mapping[str, Any]
    features: Sequence[Mapping[str, Any]]
    lanes: Sequence[str]
    """`checkpoint/lane` where it is now."""


class Bundles:
    """The registry, by project."""

    def upload(self, actor: Actor, project: str, archive: BinaryIO) -> BundleInfo:
        """Takes a tar (or tar.gz) of a bundle's directory, verifies it, pushes it to the registry."""
        raise NotImplementedError

    def adopt(self, actor: Actor, project: str, reference: str) -> BundleInfo:
        """Takes in a bundle that is in the registry already: a digest, a prefix or name@alias."""
        raise NotImplementedError

    def list(self, actor: Actor, *, project: str | None = None, limit: int = 200) -> Sequence[BundleInfo]:
        """Newest first."""
        raise NotImplementedError

    def detail(self, actor: Actor, digest: str) -> BundleDetail:
        """One of them; a prefix will do."""
        raise NotImplementedError

    def local(self, digest: str) -> Path:
        """A verified copy on this machine, for the checks."""
        raise NotImplementedError
