"""Verifying and describing bundles on disk."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from scorer.bundle.loaded import Bundle, NetFacts
from scorer.bundle.models import (
    Action,
    CalibrationFile,
    FunctionEntry,
    FunctionsFile,
    Manifest,
    OverlaySpec,
    ReasonsFile,
    ReferenceFile,
    SchemaFile,
    ScoreMapFile,
    TablesFile,
)
from scorer.bundle.rules import RuleInfo
from scorer.errors import BundleError

MANIFEST = "manifest.json"
SIGNATURE = "signature.json"
"""File of the signature of the manifest's digest. The manifest does not list it."""


class Inspection(BaseModel):
    """A verified bundle, with the contents of its JSON files."""

    model_config = ConfigDict(frozen=True)

    path: Path
    manifest: Manifest
    data: SchemaFile
    actions: list[Action]
    calibration: CalibrationFile | None
    tables: TablesFile | None = None
    """Numbers for categories, which transforms look up."""
    functions: list[FunctionEntry] = []
    """The team's own functions, which transforms and rules call."""
    score_map: ScoreMapFile | None = None
    overlay: OverlaySpec | None = None
    explains: bool = False
    """Whether the bundle has the covers that reasons need."""
    reasons: ReasonsFile | None = None
    rules: tuple[RuleInfo, ...] = ()
    """The rules and rows of decision tables, in their order."""
    reference: ReferenceFile
    schema_fingerprint: str
    forests: list[dict[str, int]]
    nets: list[NetFacts] = []
    """The ONNX models, in the order of the program."""

    @property
    def digest(self) -> str:
        """``sha256:`` and 64 hexadecimal digits."""
        return self.manifest.digest


def verify(path: str | PathLike[str], digest: str | None = None) -> Bundle:
    """Load a bundle with all checks of a server: hashes, structure, and every golden case bit for bit.

    Args:
        path: The bundle's directory.
        digest: The digest that the bundle must have. A directory whose name is 64 hexadecimal digits must
            have the digest of its name.

    Raises:
        BundleError: A check failed. The message is one line with the failed check and the remedy.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise BundleError(f'"{directory}" is not a directory; give the one that `scorer bundle build` wrote')
    return Bundle.load(directory, digest)


def inspect(path: str | PathLike[str]) -> Inspection:
    """Verify a bundle and return the contents of its JSON files.

    Args:
        path: The bundle's directory.

    Raises:
        BundleError: The bundle is not valid.
    """
    # Resolve symbolic links, so that the result names the directory itself and not an alias of it.
    directory = Path(os.path.realpath(path))
    bundle = verify(directory)
    manifest = read_manifest(directory)
    calibration = directory / "calibration.json"
    actions = directory / "actions.json"
    tables = directory / "tables.json"
    functions = directory / "functions.json"
    score_map = directory / "score_map.json"
    overlay = directory / "overlay.json"
    reasons = directory / "reasons.json"
    return Inspection(
        path=directory,
        manifest=manifest,
        data=read_schema(directory),
        actions=_actions(actions) if actions.exists() else [],
        calibration=CalibrationFile.model_validate_json(calibration.read_bytes())
        if calibration.exists()
        else None,
        tables=TablesFile.model_validate_json(tables.read_bytes()) if tables.exists() else None,
        functions=FunctionsFile.model_validate_json(functions.read_bytes()).functions
        if functions.exists()
        else [],
        score_map=ScoreMapFile.model_validate_json(score_map.read_bytes()) if score_map.exists() else None,
        overlay=OverlaySpec.model_validate_json(overlay.read_bytes()) if overlay.exists() else None,
        explains=bundle.explains,
        reasons=ReasonsFile.model_validate_json(reasons.read_bytes()) if reasons.exists() else None,
        rules=() if bundle.rules is None else bundle.rules.rules,
        reference=ReferenceFile.model_validate_json((directory / "reference.json").read_bytes()),
        schema_fingerprint=f"{bundle.schema_fingerprint:016x}",
        forests=[dict(forest) for forest in bundle.forests],
        nets=list(bundle.nets),
    )


def read_manifest(path: str | PathLike[str]) -> Manifest:
    """Read a bundle's manifest without verifying the bundle.

    Args:
        path: The bundle's directory.

    Raises:
        BundleError: The manifest is missing, or does not have the format of a manifest.
    """
    file = Path(path) / MANIFEST
    try:
        return Manifest.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        raise BundleError(f'"{file.parent}" holds no {MANIFEST}; give a bundle\'s directory') from None
    except ValidationError as error:
        first: Any = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BundleError(f'"{file}": {where}: {first["msg"]}; rebuild the bundle') from None


def read_schema(path: str | PathLike[str]) -> SchemaFile:
    """Read the schema of a bundle that has been verified.

    Args:
        path: The bundle's directory.
    """
    return SchemaFile.model_validate_json((Path(path) / "schema.json").read_bytes())


def _actions(file: Path) -> list[Action]:
    from pydantic import TypeAdapter

    return TypeAdapter(list[Action]).validate_json(file.read_bytes())
