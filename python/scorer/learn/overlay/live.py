"""What a live bundle says of logged decisions, and which of them its oracle has not learned from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from scorer.bundle import Bundle, read_manifest, revise
from scorer.learn.errors import DataError
from scorer.learn.experience import Experience
from scorer.stats.arrays import Floats

FILE = "overlay.json"


def oracle_scores(bundle: Path, experience: Experience) -> Floats:
    """`[n]` P(reward) of what was chosen, by the bundle's oracle without the overlay it may have.

    Raises:
        DataError: the experience lacks sensitive features.
    """
    with LiveOracle.of(bundle) as oracle:
        return oracle.scores(experience)


class LiveOracle:
    """The oracle of a bundle without the overlay that it may have, so that all revisions give the same bits.

    Use `of`, a context manager.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    @classmethod
    @contextmanager
    def of(cls, bundle: Path) -> Iterator[LiveOracle]:
        """Load the oracle of a bundle.

        Args:
            bundle: the bundle's directory.
        """
        with TemporaryDirectory(prefix="scorer-oracle-") as folder:
            if (bundle / FILE).is_file():
                plain = Path(folder) / "bundle"
                revise(bundle, plain, remove_overlay=True)
                bundle = plain
            yield cls(Bundle.load(bundle))

    def scores(self, experience: Experience) -> Floats:
        """`[n]` P(reward) of what was chosen.

        Raises:
            DataError: the experience lacks sensitive features.
        """
        experience.require_features("overlay")
        rewards = self._bundle.evaluate(experience.context)[1]
        return np.asarray(rewards[np.arange(len(experience)), experience.action])


def untaught_by_lineage(bundle: Path) -> int | None:
    """The same as `untaught_since` by the bundle's lineage alone; None if it does not say so."""
    learned = read_manifest(bundle).lineage.metrics.get("learning")
    if isinstance(learned, dict) and "last_ms" in learned.get("decisions", {}):
        return int(learned["decisions"]["last_ms"]) + 1
    return None


def oracle_id(bundle: Path) -> str:
    """A hash of what a bundle's oracle consists of: the same for all revisions of a bundle."""
    files = read_manifest(bundle).files
    others = {FILE, "golden.bin"}
    parts = [f"{name} {one.sha256}" for name, one in sorted(files.items()) if name not in others]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def untaught_since(bundle: Path, experience: Experience) -> int:
    """Unix time from which on no decision can have taught the bundle's oracle.

    By the last decision that its lineage says it learned from, which revisions keep; else by the first
    decision that it made itself.

    Raises:
        DataError: neither is known.
    """
    manifest = read_manifest(bundle)
    if (known := untaught_by_lineage(bundle)) is not None:
        return known
    if manifest.digest in experience.bundles:
        own = experience.bundle == experience.bundles.index(manifest.digest)
        if own.any():
            return int(experience.time_ms[own].min())
    raise DataError(
        f"overlay: {bundle} does not say what it learned from, and no decision in the log is its own; name"
        " the first decision that did not teach it with --since"
    )
