"""Score maps: a new model keeps the thresholds of an older one, by matching the quantiles of their scores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import Distribution, ScoreMapFile
from scorer.errors import BundleError

Doubles = npt.NDArray[np.float64]

SCORE_MAP = "score_map.json"
"""File of the score map in a bundle."""
MIN_SCORES = 100
"""Least number of scores of each sample."""


@dataclass(frozen=True)
class ScoreReference:
    """The scores of an older model, which a score map makes a new model's scores follow."""

    scores: npt.ArrayLike
    """Scores of the older model for rows of the same population as the validation data, ``[n]``."""


def fit_score_map(new: npt.ArrayLike, old: npt.ArrayLike) -> ScoreMapFile:
    """Fit the map after which a model's scores have the distribution of an older model's scores.

    The map joins equal quantiles of both samples: the percentiles, and quantiles towards both ends at even
    steps of the logarithm, because thresholds often lie where only few scores are. Where both samples have
    probabilities, the map also joins 0 to 0 and 1 to 1.

    Args:
        new: Scores of the model whose scores are mapped, ``[n]``.
        old: Scores of the older model, ``[m]``, for rows of the same population.

    Raises:
        BundleError: A sample has fewer than 100 scores or only one distinct score, or a score is not finite.
    """
    x, y = _sample(new, "new"), _sample(old, "old")
    tail = np.geomspace(1.0 / min(len(x), len(y)), 0.5, 100)
    levels = np.unique(np.concatenate([np.linspace(0.0, 1.0, 101), tail, 1.0 - tail]))
    knots = np.unique(np.quantile(x, levels, method="inverted_cdf"))
    # Scores of the new sample can be equal. Such a score gets the old quantile in the middle of their ranks.
    ranks = (np.searchsorted(x, knots, side="left") + np.searchsorted(x, knots, side="right")) / 2
    values = np.maximum.accumulate(np.quantile(y, ranks / len(x)))
    if min(x[0], y[0]) >= 0.0 and max(x[-1], y[-1]) <= 1.0:
        if knots[0] > 0.0:
            knots, values = np.insert(knots, 0, 0.0), np.insert(values, 0, 0.0)
        if knots[-1] < 1.0:
            knots, values = np.append(knots, 1.0), np.append(values, 1.0)
    return ScoreMapFile(x=knots.tolist(), y=values.tolist())


def mapped(score_map: ScoreMapFile, scores: npt.ArrayLike) -> Doubles:
    """Return the scores after a map, as the engine computes them except for rounding.

    Args:
        score_map: The map.
        scores: Scores of any shape.
    """
    return np.interp(np.asarray(scores, np.float64), score_map.x, score_map.y)


def share_difference(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Return the greatest difference, over all thresholds, of the shares of scores at or above the threshold.

    Args:
        first: Scores of one sample, ``[n]``.
        second: Scores of the other sample, ``[m]``.
    """
    one, other = np.sort(np.asarray(first, np.float64)), np.sort(np.asarray(second, np.float64))
    at = np.concatenate([one, other])
    below = [np.searchsorted(sample, at, side="left") / len(sample) for sample in (one, other)]
    return float(np.abs(below[0] - below[1]).max())


def remapped(
    distribution: Distribution, before: ScoreMapFile | None, after: ScoreMapFile | None
) -> Distribution:
    """Return reference statistics of scores that have another score map.

    Percentiles and bins move with their scores. The mean is that of the percentiles. Where the present map is
    flat, several scores have become one; the middle of them stands for all.

    Args:
        distribution: Statistics of scores after `before`.
        before: The present map; None without one.
        after: The new map; None without one.
    """

    def move(values: list[float]) -> Doubles:
        out = np.asarray(values, np.float64)
        if before is not None:
            ends, groups = np.unique(np.asarray(before.y), return_inverse=True)
            out = np.interp(out, ends, np.bincount(groups, weights=before.x) / np.bincount(groups))
        return out if after is None else mapped(after, out)

    quantiles = np.maximum.accumulate(move(distribution.quantiles))
    edges = np.maximum.accumulate(move(distribution.edges))
    ends = np.unique(edges)
    if len(ends) == 1:
        ends = np.array([ends[0], np.nextafter(ends[0], np.inf)])
    # The counts of bins that have become one point belong to the bin that begins there.
    counts = np.zeros(len(ends) - 1, np.int64)
    np.add.at(
        counts,
        np.minimum(np.searchsorted(ends, edges[:-1]), len(counts) - 1),
        np.asarray(distribution.counts, np.int64),
    )
    middle = (quantiles[1:] + quantiles[:-1]) / 2
    return Distribution(
        count=distribution.count,
        mean=float(middle.mean()),
        quantiles=quantiles.tolist(),
        edges=ends.tolist(),
        counts=counts.tolist(),
    )


def read_score_map(file: Path) -> ScoreMapFile:
    """Read a score map from a JSON file with the lists `x` and `y`.

    Raises:
        BundleError: The file cannot be read or is not a score map. The message names file and rule.
    """
    from pydantic import ValidationError

    try:
        return ScoreMapFile.model_validate_json(file.read_bytes())
    except OSError as error:
        raise BundleError(f'score map "{file}" cannot be read: {error.strerror}') from None
    except ValidationError as error:
        first: Any = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise BundleError(f'score map "{file}": {where}: {first["msg"]}; correct it') from None


def read_scores(file: Path, column: str) -> Doubles:
    """Read a column of scores from a Parquet file.

    Raises:
        BundleError: The file cannot be read, or has no such column of numbers.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        values = parquet.read_table(file, columns=[column])[column].to_numpy()
        return np.asarray(values, dtype=np.float64)
    except FileNotFoundError:
        raise BundleError(f'scores "{file}" are missing; give the path of a Parquet file') from None
    except KeyError:
        raise BundleError(f'scores "{file}": there is no column "{column}"; correct the name') from None
    except (pyarrow.ArrowException, OSError, TypeError, ValueError) as error:
        raise BundleError(f'scores "{file}": column "{column}" cannot be read as numbers: {error}') from None


def _sample(scores: npt.ArrayLike, which: str) -> Doubles:
    values = np.sort(np.asarray(scores, dtype=np.float64).ravel())
    if not np.isfinite(values).all():
        raise BundleError(f"score map: a score of the {which} model is NaN or infinite; check the sample")
    if len(values) < MIN_SCORES or values[0] == values[-1]:
        raise BundleError(
            f"score map: {len(values)} scores of the {which} model, at least {MIN_SCORES} that differ are "
            "needed; give a larger sample"
        )
    return values
