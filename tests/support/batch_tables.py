"""Tables for tests of batch scoring, and the comparison of their results with the library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from bundles import FEATURES, rows

from scorer.bundle import Bundle

COUNT = 1000


def payments(count: int = COUNT, first: int = 0) -> pa.Table:
    """Payments with the features of the tiny bundles, an id and a label."""
    data = rows(count, seed=11).astype(np.float64)
    columns = {name: data[:, at] for at, name in enumerate(FEATURES)}
    return pa.table({"id": [f"p{first + at}" for at in range(count)], **columns, "label": np.arange(count)})


def check_scores(found: pa.Table, bundle: Path) -> None:
    """Check the results of `payments`, in order, with the bits of the library."""
    expected = Bundle.load(bundle).score(rows(COUNT, seed=11))
    assert found["id"].to_pylist() == [f"p{at}" for at in range(COUNT)]
    np.testing.assert_array_equal(found["score"], expected.scores)
    np.testing.assert_array_equal(found["margin"], expected.margins)
