"""The bundles of a log's decisions, found by digest in given directories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pydantic import TypeAdapter

from scorer.bundle import Action, Bundle, SchemaFile, read_manifest
from scorer.bundle.check import MANIFEST
from scorer.bundle.lists import ELEMENTS, list_digest
from scorer.errors import BundleError

if TYPE_CHECKING:
    from scorer.bundle.models import Manifest
    from scorer.bundle.rules import CompiledRules
    from scorer.v1.log_pb2 import DecisionRecord

ListsRead: TypeAlias = tuple[tuple[str, int, str], ...]
"""Name, version (0: none was loaded) and digest of each external list that a decision read."""
_KEPT = 2
"""Greatest number of rule sets with versions of lists in memory."""


class MissingListError(BundleError):
    """A version of a list that a decision read was not found. The message names it."""


def lists_read(decision: DecisionRecord) -> ListsRead:
    """Return the external lists that the rules of a decision read."""
    return tuple((one.name, one.version, f"sha256:{one.digest.hex()}") for one in decision.rules.lists)


class BundleShelf:
    """Bundles by digest. A bundle is loaded and verified when it is first needed.

    Args:
        places: Directories of single bundles, directories that contain bundles, or registries.
        required: Whether each place must contain a bundle.

    Raises:
        BundleError: A place that is required does not exist or contains no bundle.
    """

    def __init__(self, places: Iterable[Path], *, required: bool = True) -> None:
        self._paths: dict[str, Path] = {}
        self._loaded: dict[str, Bundle] = {}
        self._lists: dict[str, Path] = {}
        self._ruled: dict[tuple[str, ListsRead], CompiledRules] = {}
        for place in places:
            stored = list(stored_in(place))
            # Registries also hold versions of lists, which are no bundles.
            found = [path for path in stored if not (path / ELEMENTS).is_file()]
            for path in stored:
                if path not in found:
                    self._lists.setdefault(list_digest(path), path)
            if required and not found:
                raise BundleError(
                    f'"{place}" holds no bundle; give the directory of one, of several, or of a registry'
                )
            for path in found:
                self._paths.setdefault(read_manifest(path).digest, path)

    def get(self, digest: str) -> Bundle | None:
        """Return the bundle with a digest, or None if it was not found.

        Raises:
            BundleError: The bundle does not load.
        """
        if digest not in self._loaded and digest in self._paths:
            self._loaded[digest] = Bundle.load(self._paths[digest], digest)
        return self._loaded.get(digest)

    def rules(self, digest: str, lists: ListsRead) -> CompiledRules | None:
        """Return the rules of a bundle with the versions of external lists that a decision read.

        Args:
            digest: Digest of the bundle, which was found.
            lists: The lists as the decision records them.

        Raises:
            MissingListError: A version was not found.
            BundleError: The bundle or a version does not load.
        """
        bundle = self.get(digest)
        rules = None if bundle is None else bundle.rules
        versions = {}
        for name, version, of in lists:
            if version == 0:
                continue
            if of not in self._lists:
                raise MissingListError(f"{name} version {version} ({of})")
            versions[name] = self._lists[of]
        if rules is None or not versions:
            return rules
        known = self._ruled.get((digest, lists))
        if known is None:
            # A list can have hundreds of megabytes, so only the last few are kept.
            while len(self._ruled) >= _KEPT:
                self._ruled.pop(next(iter(self._ruled)))
            known = self._ruled[digest, lists] = rules.with_versions(versions)
        return known

    def feature_names(self, digest: str) -> list[str] | None:
        """Return the names of the features in decisions of a bundle, or None if it was not found."""
        if digest not in self._paths:
            return None
        return [feature.name for feature in self.schema(digest).features]

    def catalogue(self, digest: str) -> list[Action]:
        """Return the catalogue of a bundle; empty for a score bundle.

        Raises:
            KeyError: The bundle was not found.
        """
        file = self._paths[digest] / "actions.json"
        return TypeAdapter(list[Action]).validate_json(file.read_bytes()) if file.is_file() else []

    def schema(self, digest: str) -> SchemaFile:
        """Return the schema of a bundle.

        Raises:
            KeyError: The bundle was not found.
        """
        return SchemaFile.model_validate_json((self._paths[digest] / "schema.json").read_bytes())

    def manifest(self, digest: str) -> Manifest:
        """Return the manifest of a bundle.

        Raises:
            KeyError: The bundle was not found.
        """
        return read_manifest(self._paths[digest])

    @property
    def digests(self) -> list[str]:
        """Digests of all bundles that were found."""
        return list(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def bundle_directories(places: Iterable[Path]) -> dict[str, Path]:
    """Return the directories of the bundles in some places by their digests.

    Args:
        places: Directories of single bundles, directories that contain bundles, or registries.

    Raises:
        BundleError: A manifest cannot be read.
    """
    found: dict[str, Path] = {}
    for place in places:
        for path in stored_in(place):
            if not (path / ELEMENTS).is_file():
                found.setdefault(read_manifest(path).digest, path)
    return found


def stored_in(place: Path) -> Iterator[Path]:
    """Yield the directories with a manifest at a place: itself, its children, and those of a registry."""
    for directory in (place, place / "bundles"):
        if (directory / MANIFEST).is_file():
            yield directory
        elif directory.is_dir():
            yield from sorted(file.parent for file in directory.glob(f"*/{MANIFEST}"))
