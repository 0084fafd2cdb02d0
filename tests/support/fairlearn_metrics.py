"""The group metrics of fairlearn, computed in the environment of learning's peers.

python tests/support/fairlearn_metrics.py INPUT.npz     prints the metrics as JSON
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

PYTHON = Path(__file__).parents[2] / ".build/learning/venv/bin/python"
NAMES = {
    "selection": "demographic_parity",
    "tpr": "true_positive_rate",
    "fpr": "false_positive_rate",
    "odds": "equalized_odds",
}
"""Our name of a rate, and fairlearn's name of its metrics."""


def metrics(
    folder: Path, selected: np.ndarray, positive: np.ndarray, features: np.ndarray
) -> list[dict[str, float]]:
    """Return fairlearn's metrics of each feature, such as `tpr_ratio`.

    Args:
        folder: Place of the file that the other process reads.
        selected: Whether a row is selected, shape `[n]`.
        positive: Whether a row is positive, shape `[n]`.
        features: The group of a row for each feature, shape `[n, features]`.
    """
    source = folder / "groups.npz"
    np.savez(source, selected=selected, positive=positive, features=features)
    ran = subprocess.run([PYTHON, __file__, source], check=True, capture_output=True, text=True, timeout=300)
    found: list[dict[str, float]] = json.loads(ran.stdout)
    return found


def main() -> None:
    """Print the metrics of a file."""
    fairlearn = importlib.import_module("fairlearn.metrics")
    with np.load(sys.argv[1]) as given:
        selected, positive, features = given["selected"], given["positive"], given["features"]
    print(
        json.dumps(
            [
                {
                    f"{name}_{kind}": float(
                        getattr(fairlearn, f"{theirs}_{kind}")(positive, selected, sensitive_features=feature)
                    )
                    for name, theirs in NAMES.items()
                    for kind in ("difference", "ratio")
                }
                for feature in features.T
            ]
        )
    )


if __name__ == "__main__":
    main()
