"""What a live bundle says of logged decisions, and which of them its oracle has not learned from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from scorer.bundle import Bundle, read_manifest
from scorer.bundle.models import OverlaySpec
from scorer.learn.errors import DataError
from scorer.learn.experience import Experience
from scorer.learn.logistic import sigmoid
from scorer.learn.oracle import OracleTask
from scorer.learn.overlay.design import logit, offsets
from scorer.stats.arrays import Floats

FILE = "overlay.json"


def oracle_scores(bundle: Path, task: OracleTask, experience: Experience) -> Floats:
    """`[n]` P(reward) of what was chosen, by the bundle's oracle without the overlay it may have.

    Raises:
        DataError: the experience lacks sensitive features.
    """
    experience.require_features("overlay")
    rewards = Bundle.load(bundle).evaluate(experience.context)[1]
    chosen = np.arange(len(experience)), experience.action
    said = rewards[chosen]
    if (bundle / FILE).is_file():
        spec = OverlaySpec.model_validate_json((bundle / FILE).read_bytes())
        said = sigmoid(logit(said) - offsets(spec, task, experience.context)[chosen])
    return np.asarray(said)


def untaught_since(bundle: Path, experience: Experience) -> int:
    """Unix time from which on no decision can have taught the bundle's oracle.

    By the last decision that its lineage says it learned from, which revisions keep; else by the first
    decision that it made itself.

    Raises:
        DataError: neither is known.
    """
    manifest = read_manifest(bundle)
    learned = manifest.lineage.metrics.get("learning")
    if isinstance(learned, dict) and "last_ms" in learned.get("decisions", {}):
        return int(learned["decisions"]["last_ms"]) + 1
    if manifest.digest in experience.bundles:
        own = experience.bundle == experience.bundles.index(manifest.digest)
        if own.any():
            return int(experience.time_ms[own].min())
    raise DataError(
        f"overlay: {bundle} does not say what it learned from, and no decision in the log is its own; name"
        " the first decision that did not teach it with --since"
    )
