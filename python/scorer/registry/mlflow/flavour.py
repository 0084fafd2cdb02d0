"""MLflow's pyfunc flavour of a bundle: the files beside the bundle with which MLflow loads it.

The files are written without the ``mlflow`` package. They are not part of the bundle, and servers do not read
them. A model directory contains ``MLmodel``, the environment, the examples and the folder ``bundle``::

    model/MLmodel  model/requirements.txt  model/python_env.yaml  model/input_example.json
    model/serving_input_example.json       model/bundle/manifest.json ...
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from scorer.bundle.golden_file import CHECKPOINT, GoldenCase, read_golden
from scorer.bundle.loaded import Bundle
from scorer.bundle.models import Feature

LOADER: Final = "scorer.registry.mlflow.pyfunc"
"""Module that MLflow imports to load a model. Stored models name it, so it keeps its name."""
MODEL_FILE: Final = "MLmodel"
REASONS: Final = 3
"""Number of reasons of each row, unless a call asks for another number."""
_REQUIREMENTS: Final = ("mlflow>=3.17,<4", "numpy>=2.4", "pyarrow>=25")
_EXAMPLES: Final = 5
_TYPES: Final = {"number": "double", "flag": "boolean", "category": "string"}


@dataclass(frozen=True, slots=True)
class RoleColumns:
    """Names of the input columns that are not features.

    Attributes:
        id: Column with the id of the request, which is the key of the draw.
        eligible: Column with the ids of the eligible actions.
    """

    id: str
    eligible: str

    @classmethod
    def beside(cls, features: Sequence[Feature]) -> RoleColumns:
        """Return ``request_id`` and ``eligible``, with a prefix where a feature has that name."""
        taken = {feature.name for feature in features}

        def free(name: str) -> str:
            while name in taken:
                name = f"scorer_{name}"
            return name

        return cls(free("request_id"), free("eligible"))


def needs_id(bundle: Bundle) -> bool:
    """Return whether the results of a bundle depend on the id of the request."""
    return bundle.kind == "action" or (bundle.rules is not None and bundle.rules.needs_ids)


def write_flavour(directory: Path, bundle: Bundle, files: Path, features: Sequence[Feature]) -> list[str]:
    """Write the files of the flavour, and return their names.

    Args:
        directory: An existing directory that the files are written to.
        bundle: The verified bundle.
        files: The bundle's directory.
        features: The features of a request.
    """
    from scorer import bridge

    cases = list(islice(read_golden(files), 1, 1 + _EXAMPLES))
    example = _split(bundle, features, cases)
    version, python = bridge.__version__, platform.python_version()
    contents: dict[str, str] = {
        "requirements.txt": "\n".join([*_REQUIREMENTS, f"scorer=={version}", ""]),
        "python_env.yaml": _json(
            {
                "python": python,
                "build_dependencies": ["pip"],
                "dependencies": ["-r requirements.txt"],
            }
        ),
        "input_example.json": _json(example),
        "serving_input_example.json": _json(
            {"dataframe_split": example, **({"params": {"checkpoint": CHECKPOINT}} if bundle.actions else {})}
        ),
        # JSON is YAML as well, so that no package is needed to write it.
        MODEL_FILE: _json(
            {
                "artifact_path": "model",
                "flavors": {
                    "python_function": {
                        "data": "bundle",
                        "env": {"virtualenv": "python_env.yaml"},
                        "loader_module": LOADER,
                        "python_version": python,
                    }
                },
                "metadata": {
                    "scorer.bundle": bundle.digest,
                    "scorer.kind": bundle.kind,
                    "scorer.name": bundle.name,
                },
                "saved_input_example_info": {
                    "artifact_path": "input_example.json",
                    "pandas_orient": "split",
                    "serving_input_path": "serving_input_example.json",
                    "type": "dataframe",
                },
                "signature": {
                    "inputs": json.dumps(_inputs(bundle, features)),
                    "outputs": json.dumps(_outputs(bundle)),
                    "params": json.dumps(_params(bundle)),
                },
            }
        ),
    }
    for name, text in contents.items():
        (directory / name).write_text(text, encoding="utf-8")
    return list(contents)


def _inputs(bundle: Bundle, features: Sequence[Feature]) -> list[Mapping[str, Any]]:
    """Return the columns of the signature. Features that may be missing are optional columns."""
    columns: list[Mapping[str, Any]] = [
        {"name": one.name, "type": _TYPES[one.type], "required": one.missing == "refuse"} for one in features
    ]
    roles = RoleColumns.beside(features)
    if needs_id(bundle):
        columns.append({"name": roles.id, "type": "string", "required": True})
    if bundle.kind == "action":
        columns.append({"name": roles.eligible, "required": False, **_list_of("string")})
    return columns


def _outputs(bundle: Bundle) -> list[Mapping[str, Any]]:
    """Return the columns of the results, as `BatchScorer.output_schema` does, for the default parameters."""
    text, number = {"type": "string"}, {"type": "double"}
    ruled, columns = bundle.rules is not None, {}
    if bundle.kind == "score":
        columns = {"margin": number, "score": number, "decision": text}
        if ruled:
            columns |= {"ruled_score": number, "queue": text, "rules": _list_of("string")}
    else:
        columns = {"action": text, "propensity": number, "expected_reward": number, "pmf": _list_of("double")}
        if ruled:
            columns |= {"allowed": _list_of("boolean"), "rules": _list_of("string")}
    if bundle.functions:
        columns |= {"faulted_functions": _list_of("string")}
    for place in range(1, 1 + (REASONS if bundle.explains else 0)):
        columns |= {
            f"reason_{place}_code": text,
            f"reason_{place}_feature": text,
            f"reason_{place}_contribution": number,
        }
    return [{"name": name, "required": True, **kind} for name, kind in columns.items()]


def _params(bundle: Bundle) -> list[Mapping[str, Any]]:
    params: list[Mapping[str, Any]] = [
        {"name": "reasons", "type": "long", "default": REASONS if bundle.explains else 0},
        {"name": "bad_rows", "type": "string", "default": "fail"},
    ]
    if bundle.kind == "action":
        params.append({"name": "checkpoint", "type": "string", "default": ""})
    if bundle.rules is not None:
        params.append({"name": "at", "type": "long", "default": 0})
    return [{**param, "shape": None} for param in params]


def _list_of(kind: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": kind}}


def _split(bundle: Bundle, features: Sequence[Feature], cases: Sequence[GoldenCase]) -> Mapping[str, Any]:
    """Return golden cases as a table with the values that a caller gives."""
    columns = [feature.name for feature in features]
    data = [
        [_named(feature, value) for feature, value in zip(features, case.row, strict=True)] for case in cases
    ]
    roles = RoleColumns.beside(features)
    if needs_id(bundle):
        columns.append(roles.id)
        for row, case in zip(data, cases, strict=True):
            row.append(case.id)
    if bundle.kind == "action":
        columns.append(roles.eligible)
        for row, case in zip(data, cases, strict=True):
            row.append([name for name, may in zip(bundle.actions, case.eligible, strict=True) if may])
    return {"columns": columns, "data": data}


def _named(feature: Feature, value: float) -> Any:
    """Return the value that a code of the engine stands for; None for a missing one."""
    if math.isnan(value):
        return None
    if feature.type == "category":
        return feature.categories[int(value)]
    return bool(value) if feature.type == "flag" else value


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
