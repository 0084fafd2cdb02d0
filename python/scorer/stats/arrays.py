"""Names of the array types that statistics and learning take and return."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Rows32 = npt.NDArray[np.float32]
"""Encoded rows of features, in the engine's precision."""
