"""The files that the platform and a build's process exchange: job, progress and result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scorer.durable import write_atomically
from scorer.errors import BundleError
from scorer.release import children

JOB, PROGRESS, RESULT, ERROR = "job.json", "progress.json", "result.json", "error.txt"
OUTPUT = "bundle"
"""Name of the bundle's directory in the folder of the build."""

FORMATS = {".json": "xgboost", ".ubj": "xgboost", ".txt": "lightgbm", ".tl": "treelite"}
"""Endings of model files, and the libraries that write them."""
TABLES = (".parquet", ".csv")
"""Endings of tables."""

_CODE = (".pkl", ".pickle", ".joblib", ".skops", ".dill", ".cloudpickle")


@dataclass(frozen=True, slots=True)
class BuildJob:
    """One build. Files are names in the build's folder.

    Attributes:
        id: Id of the build.
        user: Name of the user who requested it.
        name: Name of the bundle.
        version: Version of the model, as the user gave it.
        model: The model file.
        table: Table of reference data.
        validation: Table of rows that the model has not seen; empty: the same table.
        example: An example request; empty: none.
        live: Directory of the bundle that bands, policy and actions are copied from; empty: none.
        schema: `table`, `example`, `lines` or `live`.
        features: Lines of features, if `schema` is `lines`.
        bands: Lines of bands; empty: those of the live bundle.
        calibration: `none`, `isotonic` or `sigmoid`.
        label: Column of the table with the outcome, 0 or 1; empty: none.
        model_digest: SHA-256 of the model file.
        table_digest: SHA-256 of the table.
        memory_bytes: Limit on the process's address space in bytes.
        seconds: Limit on its processor time in seconds.
        file_bytes: Limit on each file that it writes, in bytes.
    """

    id: str
    user: str
    name: str
    version: str
    model: str
    table: str
    validation: str
    example: str
    live: str
    schema: str
    features: str
    bands: str
    calibration: str
    label: str
    model_digest: str
    table_digest: str
    memory_bytes: int
    seconds: float
    file_bytes: int


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The result of a build."""

    digest: str
    notes: Sequence[str] = ()
    """Sentences for a reviewer of the bundle."""


def ending_of_model(name: str) -> str:
    """Return the extension of a model file. Raises BundleError if it is not supported."""
    ending = Path(name).suffix.lower()
    if ending in _CODE:
        raise BundleError(
            f'"{name[:100]}" is a pickle, which can run code when it is read; save a scikit-learn model with '
            "treelite.sklearn.import_model(model).serialize(...) as a .tl file, other models by their library"
        )
    if ending not in FORMATS:
        raise BundleError(
            f'model "{name[:100]}" has the ending "{ending}"; .json and .ubj (XGBoost), .txt (LightGBM) and '
            ".tl (Treelite checkpoint) are read"
        )
    return ending


def ending_of_table(name: str) -> str:
    """Return the extension of a table. Raises BundleError if it is not supported."""
    ending = Path(name).suffix.lower()
    if ending not in TABLES:
        raise BundleError(f'table "{name[:100]}" has the ending "{ending}"; .parquet and .csv are read')
    return ending


def write_job(folder: Path, job: BuildJob) -> None:
    """Write the job of a build."""
    write_atomically(folder / JOB, json.dumps(asdict(job)).encode())


def read_job(folder: Path) -> BuildJob:
    """Read the job of a build."""
    return BuildJob(**json.loads((folder / JOB).read_bytes()))


def write_progress(folder: Path, words: str) -> None:
    """Write the present step of the build."""
    children.write_progress(folder / PROGRESS, {"words": words})


def read_progress(folder: Path) -> str:
    """Read the present step; empty if none was written yet."""
    found = _read(folder / PROGRESS)
    return str(found.get("words", ""))[:200]


def write_result(folder: Path, built: BuildResult) -> None:
    """Write the result, which ends the build."""
    write_atomically(folder / RESULT, json.dumps(asdict(built)).encode())


def read_result(folder: Path) -> BuildResult | None:
    """Read the result; None if there is none yet."""
    found = _read(folder / RESULT)
    if not isinstance(found.get("digest"), str):
        return None
    return BuildResult(found["digest"], tuple(str(note)[:1000] for note in found.get("notes", ())[:20]))


def _read(path: Path) -> dict[str, Any]:
    """Return the object of a small file that a build's process has written; empty without one."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(1 << 16))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
