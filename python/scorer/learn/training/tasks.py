"""The task of a training run: read from a bundle, or from its schema and catalogue alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from scorer.bundle import Action, SchemaFile, read_manifest
from scorer.bundle.check import MANIFEST
from scorer.bundle.models import to_json
from scorer.learn.errors import DataError
from scorer.learn.oracle import OracleTask
from scorer.learn.training.preview import schema_of


def read_task(path: Path) -> OracleTask:
    """The task of a directory with `schema.json` and `actions.json`: an action bundle, or just these two.

    The name is the bundle's, or the directory's. Transforms in front of a bundle's forest are not
    carried over: they are monotone, and trees split alike without them.

    Raises:
        DataError: a file is missing or is not what it should be.
    """
    if not path.is_dir():
        raise DataError(
            f"task {path}: no such directory; give an action bundle, or schema.json and actions.json"
        )
    name = read_manifest(path).name if (path / MANIFEST).is_file() else path.resolve().name
    try:
        schema = SchemaFile.model_validate_json((path / "schema.json").read_bytes())
        actions = TypeAdapter(list[Action]).validate_json((path / "actions.json").read_bytes())
    except FileNotFoundError as error:
        what = Path(error.filename).name
        raise DataError(
            f"task {path}: there is no {what}; only action bundles have a task to learn"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(f"task {path}: {where}: {first['msg']}") from None
    return task_of(name, schema, actions)


def write_task(task: OracleTask, path: Path) -> None:
    """Writes a directory that `read_task` reads: what a first generation, which has no bundle, learns for."""
    actions = [action.model_dump(mode="json") for action in task.actions]
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / "schema.json").write_bytes(to_json(schema_of(task)))
        (path / "actions.json").write_text(json.dumps(actions, indent=1) + "\n")
    except OSError as error:
        raise DataError(f"task {path}: cannot be written ({error.strerror or error})") from error


def task_of(name: str, schema: SchemaFile, actions: Sequence[Action]) -> OracleTask:
    """The task of a schema and a catalogue."""
    for action in actions:
        if len(action.features) != len(schema.action_features):
            raise DataError(
                f'task {name}: action "{action.id}" has {len(action.features)} features, the schema has '
                f"{len(schema.action_features)} for actions"
            )
    return OracleTask(
        name=name,
        context=tuple(schema.features),
        action=tuple(schema.action_features),
        actions=tuple(actions),
    )
