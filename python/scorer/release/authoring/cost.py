"""Measurement of the time that each rule of a bundle needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scorer.bundle.rule_costs import RuleCosts, RuleRows, golden_requests, measure_rules
from scorer.errors import BundleError
from scorer.release.authoring.bench import BenchRequest, encoded_requests
from scorer.release.errors import InvalidError

if TYPE_CHECKING:
    from scorer.bundle import Bundle
    from scorer.bundle.models import Feature
    from scorer.bundle.rules import CompiledRules

BATCHES: Final = 50
"""Batches of each rule."""
SECONDS: Final = 2.0
"""Time after which no further batches begin."""


def run_cost(
    directory: Path,
    bundle: Bundle,
    features: Sequence[Feature],
    rules: CompiledRules,
    recorded: Sequence[BenchRequest],
) -> RuleCosts:
    """Measure rules on recorded decisions, or on the golden cases of a bundle.

    Args:
        directory: Directory of the bundle.
        bundle: The bundle, which computes scores that are not recorded.
        features: The features of its requests.
        rules: The rules.
        recorded: The decisions; empty: the golden cases.

    Raises:
        InvalidError: A value does not fit the schema, or the bundle cannot be read.
    """
    import numpy as np

    try:
        if recorded:
            rows, scores, seconds, ids = encoded_requests(bundle, features, recorded)
            source = f"{len(ids)} recorded decisions"
            requests = RuleRows(rows, scores, np.asarray(seconds, np.int64), ids, source)
        else:
            requests = golden_requests(directory, bundle)
        return measure_rules(rules, requests, batches=BATCHES, seconds=SECONDS)
    except BundleError as error:
        raise InvalidError(str(error)) from None
