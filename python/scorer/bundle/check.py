"""Verifying and describing bundles on disk."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from scorer.bundle.loaded import Bundle
from scorer.bundle.models import Action, CalibrationFile, Manifest, OverlaySpec, ReferenceFile, SchemaFile
from scorer.errors import BundleError

MANIFEST = "manifest.json"
SIGNATURE = "signature.json"
"""Over the manifest's digest; the manifest cannot list it."""


class Inspection(BaseModel):
    """A bundle in full: its JSON files as models."""

    model_config = ConfigDict(frozen=True)

    path: Path
    manifest: Manifest
    data: SchemaFile
    actions: list[Action]
    calibration: CalibrationFile | None
    overlay: OverlaySpec | None = None
    reference: ReferenceFile
    schema_fingerprint: str
    forests: list[dict[str, int]]

    @property
    def digest(self) -> str:
        """``sha256:`` and 64 hexadecimal digits."""
        return self.manifest.digest


def verify(path: str | PathLike[str], digest: str | None = None) -> Bundle:
    """Loads a bundle exactly as the server does: hashes, structure, every golden case bit for bit.

    Args:
        path: The bundle's directory.
        digest: The digest it must have; a directory named by 64 hexadecimal digits must have that one.

    Raises:
        BundleError: With one line that names what is wrong and what to do.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise BundleError(f'"{directory}" is not a directory; give the one that `scorer bundle build` wrote')
    return Bundle.load(directory, digest)


def inspect(path: str | PathLike[str]) -> Inspection:
    """Verifies a bundle and returns everything that its JSON files say."""
    # The directory may be an alias's symbolic link: name the place itself.
    directory = Path(os.path.realpath(path))
    bundle = verify(directory)
    manifest = read_manifest(directory)
    calibration = directory / "calibration.json"
    actions = directory / "actions.json"
    overlay = directory / "overlay.json"
    return Inspection(
        path=directory,
        manifest=manifest,
        data=SchemaFile.model_validate_json((directory / "schema.json").read_bytes()),
        actions=_actions(actions) if actions.exists() else [],
        calibration=CalibrationFile.model_validate_json(calibration.read_bytes())
        if calibration.exists()
        else None,
        overlay=OverlaySpec.model_validate_json(overlay.read_bytes()) if overlay.exists() else None,
        reference=ReferenceFile.model_validate_json((directory / "reference.json").read_bytes()),
        schema_fingerprint=f"{bundle.schema_fingerprint:016x}",
        forests=[dict(forest) for forest in bundle.forests],
    )


def read_manifest(path: str | PathLike[str]) -> Manifest:
    """The manifest alone; nothing is verified."""
    file = Path(path) / MANIFEST
    try:
        return Manifest.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        raise BundleError(f'"{file.parent}" holds no {MANIFEST}; give a bundle\'s directory') from None
    except ValidationError as error:
        first: Any = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BundleError(f'"{file}": {where}: {first["msg"]}; rebuild the bundle') from None


def _actions(file: Path) -> list[Action]:
    from pydantic import TypeAdapter

    return TypeAdapter(list[Action]).validate_json(file.read_bytes())
