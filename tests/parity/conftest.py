"""What every parity test needs: data, rows at thresholds, and equality of bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one thread per library: the models are so small that threads would mostly wait for each other."""
    with threadpool_limits(1):
        yield


_WORDS = {np.dtype(np.float32): np.uint32, np.dtype(np.float64): np.uint64}


def _assert_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Assert equal type, shape and bits. 0.0 and -0.0 differ, and so do adjacent floats."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    word = _WORDS[actual.dtype]
    same = np.ascontiguousarray(actual).view(word) == np.ascontiguousarray(expected).view(word)
    if not same.all():
        where = tuple(np.argwhere(~same)[0])
        pytest.fail(
            f"{(~same).sum()} of {same.size} values differ, the first at {where}: "
            f"{actual[where]!r} instead of {expected[where]!r}"
        )


@pytest.fixture(scope="session")
def assert_bits() -> Callable[[np.ndarray, np.ndarray], None]:
    return _assert_bits


def _table(seed: int, rows: int = 800, features: int = 8, missing: float = 0.06) -> np.ndarray:
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(rows, features)).astype(np.float32)
    data[:, 1] = np.round(data[:, 1] * 2)  # many equal values, including zeros
    data[:, 2] *= 1e-3
    data[rng.random(data.shape) < missing] = np.nan
    return data


@pytest.fixture(scope="session")
def table() -> Callable[..., np.ndarray]:
    return _table


def _edge_rows(base: np.ndarray, thresholds: Iterable[tuple[int, float]], limit: int = 400) -> np.ndarray:
    """Return rows of ``base`` with one value replaced by a threshold, an adjacent or a special float."""
    rng = np.random.default_rng(0)
    odd = [0.0, -0.0, 1e-45, -1e-45, 1e-35, 1.0000001e-35, -1e-35, 1e-38, np.inf, -np.inf, np.nan]
    pairs = sorted(set(thresholds))
    if len(pairs) > limit:
        pairs = [pairs[i] for i in rng.choice(len(pairs), limit, replace=False)]
    rows = []
    for feature, threshold in pairs:
        with np.errstate(over="ignore", under="ignore"):
            nearest = np.float32(threshold)
        around = [
            nearest,
            np.nextafter(nearest, np.float32(np.inf)),
            np.nextafter(nearest, np.float32(-np.inf)),
        ]
        for value in around:
            row = base[rng.integers(len(base))].copy()
            row[feature] = value
            rows.append(row)
    for feature in range(base.shape[1]):
        for value in odd:
            row = base[rng.integers(len(base))].copy()
            row[feature] = value
            rows.append(row)
    return np.array(rows, np.float32)


@pytest.fixture(scope="session")
def edge_rows() -> Callable[..., np.ndarray]:
    return _edge_rows
