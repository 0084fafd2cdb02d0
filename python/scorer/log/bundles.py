"""The bundles of a log's decisions, found by digest in given directories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import TypeAdapter

from scorer.bundle import Action, Bundle, SchemaFile, read_manifest
from scorer.bundle.check import MANIFEST
from scorer.errors import BundleError


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
        for place in places:
            found = list(_bundles_in(place))
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

    @property
    def digests(self) -> list[str]:
        """Digests of all bundles that were found."""
        return list(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def _bundles_in(place: Path) -> Iterator[Path]:
    for directory in (place, place / "bundles"):
        if (directory / MANIFEST).is_file():
            yield directory
        elif directory.is_dir():
            yield from sorted(file.parent for file in directory.glob(f"*/{MANIFEST}"))
