"""The task of a score checkpoint: the name of its bundles and the features of a request."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from scorer.bundle import Feature, SchemaFile, read_manifest
from scorer.bundle.check import MANIFEST
from scorer.bundle.models import to_json
from scorer.ids import SCHEME
from scorer.learn.errors import DataError

SCHEMA = "schema.json"


@dataclass(frozen=True)
class ScoreTask:
    """What a score checkpoint is asked.

    Attributes:
        name: Name of its bundles.
        features: Features of a request, in the order of the model's columns.
    """

    name: str
    features: tuple[Feature, ...]


def schema_digest(task: ScoreTask) -> str:
    """Return the digest of the features, in their order."""
    return SCHEME + hashlib.sha256(to_json(SchemaFile(features=list(task.features)))).hexdigest()


def read_score_task(path: Path) -> ScoreTask:
    """Read the task from a score bundle, or from a directory with a `schema.json` and its name.

    Raises:
        DataError: There is no such directory, or it is that of an action checkpoint.
    """
    if not path.is_dir():
        raise DataError(
            f'task "{path}": no such directory; give a score bundle, or a directory with {SCHEMA}'
        )
    name = path.resolve().name
    if (path / MANIFEST).is_file():
        manifest = read_manifest(path)
        name = manifest.name
        if manifest.kind != "score":
            raise DataError(f'task "{path}": it is an action bundle; `scorer learn train` trains for it')
    try:
        schema = SchemaFile.model_validate_json((path / SCHEMA).read_bytes())
    except FileNotFoundError:
        raise DataError(f'task "{path}": there is no {SCHEMA}; add the features of a request') from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(f'task "{path}": {SCHEMA}: {where}: {first["msg"]}') from None
    if schema.action_features or not schema.features:
        raise DataError(f'task "{path}": {SCHEMA} needs features and no action_features')
    return ScoreTask(name, tuple(schema.features))


def write_score_task(task: ScoreTask, path: Path) -> None:
    """Write a directory that `read_score_task` reads."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / SCHEMA).write_bytes(to_json(SchemaFile(features=list(task.features))))
    except OSError as error:
        raise DataError(f'task "{path}": cannot be written ({error.strerror or error})') from error
