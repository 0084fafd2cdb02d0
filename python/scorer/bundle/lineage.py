"""The lineage of a bundle: training data, code, library versions and metrics."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import subprocess
import uuid
from collections.abc import Mapping
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import Any

from scorer.bundle.models import Lineage
from scorer.errors import BundleError
from scorer.ids import SCHEME

LABELS_KEY = b"scorer.labels"
"""Key in the metadata of a Parquet file under which `scorer learn label` stores its policy and counts."""

_LIBRARIES = ("scorer", "xgboost", "lightgbm", "scikit-learn", "treelite", "onnxruntime", "numpy", "pyarrow")


def describe_lineage(
    *data: str | PathLike[str],
    data_digest: str | None = None,
    code_version: str | None = None,
    run_id: str | None = None,
    metrics: Mapping[str, Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
    importance: Mapping[str, float] | None = None,
) -> Lineage:
    """Describe a training run for a bundle's manifest.

    A data file that `scorer learn label` wrote brings its label policy, which the lineage records as well.

    Args:
        *data: The files of the training data; their digest identifies the data.
        data_digest: The digest that identifies training data which is not in files; used instead of `data`.
        code_version: Version of the training code; default: the Git commit of the working directory.
        run_id: Id of the training run; default: a new id.
        metrics: Metrics of the training run, by name.
        parameters: Algorithm and hyperparameters, by name.
        importance: Importance of each feature, 0 or above, in any unit.

    Raises:
        BundleError: Neither files nor a digest are given, or an importance is negative or not finite.
        OSError: A file cannot be read.
    """
    if not data and not data_digest:
        raise BundleError("lineage: no data files; name the files that were trained on")
    for name, value in (importance or {}).items():
        if not math.isfinite(value) or value < 0:
            raise BundleError(
                f'lineage: the importance of "{name}" is {value}; give a finite number of 0 or above'
            )
    return Lineage(
        data_digest=data_digest or digest_of(*data),
        code_version=code_version or _commit(),
        library_versions=library_versions(),
        run_id=run_id or uuid.uuid4().hex,
        metrics=dict(metrics or {}),
        parameters=dict(parameters or {}),
        importance=dict(importance or {}),
        labels=[notes for path in data if (notes := _labels(Path(path))) is not None],
    )


def digest_of(*paths: str | PathLike[str]) -> str:
    """Return ``sha256:`` and the SHA-256 of the concatenated SHA-256 digests of files, in the given order."""
    whole = hashlib.sha256()
    for path in paths:
        with Path(path).open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return SCHEME + whole.hexdigest()


def library_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed libraries that training may use."""
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _labels(path: Path) -> dict[str, Any] | None:
    """Return the label policy that made a Parquet file, as stored in its metadata; None without one."""
    with path.open("rb") as file:
        if file.read(4) != b"PAR1":
            return None
    import pyarrow.parquet as pq

    text = (pq.read_metadata(path).metadata or {}).get(LABELS_KEY)
    if text is None:
        return None
    notes: dict[str, Any] = json.loads(text)
    return notes


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip() or "unknown"
