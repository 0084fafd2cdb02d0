"""Model files and tables like those that users send, from the small models in `bundles`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from bundles import FEATURES, fraud_model, oracle_model, rows
from pyarrow import csv, parquet


def table(count: int = 600, *, seed: int = 3) -> pa.Table:
    """Return payments with a label that depends on the features."""
    data = rows(count, seed=seed)
    columns: dict[str, Any] = dict(zip(FEATURES, data.T, strict=True))
    odds = data[:, 0] / 100 + data[:, 2] / 2 - 2.5
    columns["fraud"] = (np.random.default_rng(seed).random(count) < 1 / (1 + np.exp(-odds))).astype(np.int8)
    return pa.table(columns)


def write_table(path: Path, content: pa.Table | None = None) -> Path:
    content = table() if content is None else content
    if path.suffix == ".csv":
        csv.write_csv(content, path)
    else:
        parquet.write_table(content, path)
    return path


def write_model(path: Path, *, variant: int = 2) -> Path:
    """Write the tiny score model in the format of the file name's suffix."""
    import treelite

    booster = fraud_model(variant)
    if path.suffix in (".json", ".ubj"):
        booster.save_model(path)
    elif path.suffix == ".tl":
        treelite.frontend.from_xgboost(booster).serialize(path)
    else:
        import lightgbm

        training = table()
        matrix = np.stack([training[name].to_numpy() for name in FEATURES], axis=1)
        data = lightgbm.Dataset(matrix, training["fraud"].to_numpy(), feature_name=list(FEATURES))
        settings = {"objective": "binary", "num_leaves": 7, "verbosity": -1, "num_threads": 1}
        lightgbm.train(settings, data, 4).save_model(path)
    return path


def write_oracle(path: Path, *, variant: int = 2) -> Path:
    """Write the tiny model of an action bundle."""
    oracle_model(variant).save_model(path)
    return path
