"""Scorers of worker processes, which engines start and use for many batches."""

from __future__ import annotations

from functools import lru_cache

from scorer.batch.scoring import BatchColumns, BatchScorer
from scorer.bundle.loaded import Bundle

_KEPT = 4


@lru_cache(maxsize=_KEPT)
def worker_scorer(directory: str, digest: str, columns: BatchColumns) -> BatchScorer:
    """Return this process's scorer of a bundle, which is loaded and verified at the first call.

    Args:
        directory: The bundle's directory, at the same path on every machine.
        digest: The digest that the bundle must have.
        columns: The columns that are read and returned.

    Raises:
        BundleError: The bundle is not valid, or has another digest.
    """
    return BatchScorer(Bundle.load(directory, digest), directory, columns)
