"""Estimate effects with CausalPy: `python causalpy_effect.py TABLES.json` prints one JSON line per table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import causalpy
import pandas
from sklearn.linear_model import LinearRegression

_BEFORE = 12


def main() -> None:
    """Read the months of adopters and donors of each table, and print the cumulative effects."""
    for table in json.loads(Path(sys.argv[1]).read_text()):
        columns = {f"donor{at}": values for at, values in enumerate(table["donors"])}
        frame = pandas.DataFrame({"treated": table["treated"], **columns})
        found = causalpy.InterruptedTimeSeries(
            frame,
            treatment_time=_BEFORE,
            formula="treated ~ 0 + " + " + ".join(columns),
            model=LinearRegression(fit_intercept=False),
        )
        sys.stdout.write(json.dumps({"effect": float(found.post_impact.sum())}) + "\n")


if __name__ == "__main__":
    main()
