"""Which generation a bundle is, read from its lineage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Where a bundle's lineage metrics keep what training decided.
KEY = "learning"


@dataclass(frozen=True)
class Generation:
    """What the next generation needs to know of the one before it.

    Attributes:
        number: 1 for the first that was learned.
        gamma: of its inverse-gap rule, measured and recorded for every rule; None: nothing is known.
        bundle: digest.
    """

    number: int = 0
    gamma: float | None = None
    bundle: str = ""

    @staticmethod
    def of_bundle(path: Path) -> Generation:
        """From a bundle's lineage; a bundle that was not learned is generation 0.

        Raises:
            BundleError: there is no bundle.
        """
        from scorer.bundle import read_manifest

        manifest = read_manifest(path)
        learned: Any = manifest.lineage.metrics.get(KEY)
        if not isinstance(learned, dict):
            return Generation(bundle=manifest.digest)
        gamma = learned.get("gamma", {}).get("gamma")
        return Generation(
            number=int(learned.get("generation", 0)),
            gamma=None if gamma is None else float(gamma),
            bundle=manifest.digest,
        )
