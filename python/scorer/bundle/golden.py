"""Sampling of golden rows, which a server scores at every load and compares with the stored results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import Feature

Rows = npt.NDArray[np.float32]

# Most eligible actions of all golden cases. They are evaluated at every load, which shall take less than 1 s.
_MAX_ACTION_ROWS = 32_768


def sample_rows(
    features: Sequence[Feature],
    data: Rows,
    splits: Iterable[tuple[int, float]],
    count: int,
    random: np.random.Generator,
    sensitive: Collection[str] = (),
) -> Rows:
    """Sample rows that the schema accepts, half of them with one feature set to an edge value.

    Edges are the model's own thresholds (at, just below, just above), missing values, the ends of the allowed
    range, and zeros; one feature at a time, so that the rest of the row stays plausible. The values of the
    features named in `sensitive` are never those of the data: each is drawn from the edges of its feature.
    """
    splits = list(splits)
    rows = data[random.integers(0, len(data), count)].copy()
    for column, feature in enumerate(features):
        if feature.name in sensitive:
            drawn = _values_of(feature, [threshold for at, threshold in splits if at == column])
            rows[:, column] = drawn[random.integers(0, len(drawn), count)]
    edges = [
        (column, value)
        for column, threshold in _some(splits, 4 * count, random)
        if column < len(features) and features[column].type == "number"
        for value in _around(threshold)
    ]
    for column, feature in enumerate(features):
        edges += [(column, value) for value in _edges_of(feature)]
    allowed = [(column, value) for column, value in edges if _accepts(features[column], value)]
    if allowed:
        for place in range(count // 2):
            column, value = allowed[int(random.integers(len(allowed)))]
            rows[place, column] = value
    if count > 1:
        for column, feature in enumerate(features):
            if feature.missing == "allow":
                rows[0, column] = np.nan
    return rows


def sample_masks(count: int, actions: int, random: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Sample eligible sets ``[count, actions]``.

    The first set has every action, one in sixteen has a single action, and the others have random sizes.

    Args:
        count: Number of sets.
        actions: Number of actions of the catalogue.
        random: Source of random numbers.
    """
    most = max(1, min(actions, _MAX_ACTION_ROWS // count))
    masks = np.zeros((count, actions), dtype=bool)
    for place, mask in enumerate(masks):
        size = 1 if place % 16 == 1 else int(random.integers(1, most + 1))
        mask[random.choice(actions, size, replace=False)] = True
    masks[0] = True
    return masks


def _values_of(feature: Feature, thresholds: Iterable[float]) -> Rows:
    """Return the values of a feature that are known without the data: edges, and codes of categories."""
    values = _edges_of(feature)
    if feature.type == "category":
        values += [np.float32(code) for code in range(len(feature.categories))]
    if feature.type == "number":
        values += [value for threshold in sorted(set(thresholds)) for value in _around(threshold)]
    return np.array([value for value in values if _accepts(feature, value)], dtype=np.float32)


def _some(
    splits: Iterable[tuple[int, float]], count: int, random: np.random.Generator
) -> list[tuple[int, float]]:
    every = sorted(set(splits))
    if len(every) <= count:
        return every
    return [every[i] for i in np.sort(random.choice(len(every), count, replace=False))]


def _around(threshold: float) -> list[np.float32]:
    at = np.float32(threshold)
    return [np.nextafter(at, np.float32(-np.inf)), at, np.nextafter(at, np.float32(np.inf))]


def _edges_of(feature: Feature) -> list[np.float32]:
    if feature.type == "category":
        return [np.float32(0), np.float32(len(feature.categories) - 1), np.float32(np.nan)]
    if feature.type == "flag":
        return [np.float32(0), np.float32(1), np.float32(np.nan)]
    ends = [value for value in (feature.minimum, feature.maximum) if value is not None]
    tiny = np.float32(1e-45)  # the smallest positive float32, which is subnormal
    return [np.float32(np.nan), np.float32(0), np.float32(-0.0), tiny, *(np.float32(end) for end in ends)]


def _accepts(feature: Feature, value: np.float32) -> bool:
    if np.isnan(value):
        return feature.missing == "allow"
    if not np.isfinite(value):
        return False
    low = -np.inf if feature.minimum is None else np.float32(feature.minimum)
    high = np.inf if feature.maximum is None else np.float32(feature.maximum)
    return bool(low <= value <= high)
